"""The section `provider` of a pool whose instances are Compute Engine instances."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from control_plane.config.durations import PositiveDuration
from control_plane.config.providers import FreeMap, Provider, VolumeGib, Zones
from control_plane.field_types import Text


class GcpProvider(Provider):
    """Instances are Compute Engine instances."""

    is_available: ClassVar[bool] = False
    type: Literal["gcp"]
    project: str = ""
    """The server's own if empty."""
    zone: str = ""
    """The server's own if empty."""
    instance_type: FreeMap = Field(default_factory=dict)
    """`machine_type`, `gpu_type`, `gpu_num` and `preemptible`, where there are no offerings."""
    cpu_slots_allowed: bool = False
    """Whether a type without GPUs counts as one slot."""
    base_config: FreeMap = Field(default_factory=dict)
    """Properties of an instance as the cloud's API takes them."""
    boot_disk_size: VolumeGib = 200
    """GiB."""
    boot_disk_type: Text = "pd-standard"
    """The kind of disk."""
    boot_disk_source_image: str = ""
    """The machine image; the default one if empty."""
    label_key: Text = "managed-by"
    """The label by which the cluster knows its instances."""
    label_value: str = ""
    """The cluster's id if empty."""
    name_prefix: str = ""
    """What the names of instances begin with."""
    network_interface: FreeMap = Field(default_factory=dict)
    """`network`, `subnetwork` and `external_ip`."""
    network_tags: Zones = ()
    """For firewall rules."""
    service_account: FreeMap = Field(default_factory=dict)
    """`email` and `scopes`."""
    operation_timeout_period: PositiveDuration = 5 * 60_000
    """How long an operation of the cloud may take."""
    use_cloud_logging: bool = False
    """Whether the agents' logs go to the cloud."""
