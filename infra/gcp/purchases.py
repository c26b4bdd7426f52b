"""The offerings of pools on Google Cloud, with the facts that quotas and policies depend on."""

from typing import NamedTuple

from control_plane.config.pools import ClusterConfig
from control_plane.fleet.records import Market
from control_plane.gcp.accelerator_quotas import quota_metric
from control_plane.gcp.machine_types import (
    accelerator_of,
    boot_disk_type,
    gpus_of,
    parse_instance_type,
)
from infra.gcp.pool_checks import gcp_pools, pool_region


class Purchase(NamedTuple):
    """An offering of a pool."""

    pool: str
    """The name of the pool."""
    region: str
    """The region of the pool's instances."""
    zone: str
    """Empty for any zone of the region."""
    machine_type: str
    """Compute Engine's name of the type, without attached GPUs."""
    accelerator: str
    """The name of an instance's GPUs; empty without GPUs."""
    gpus: int
    """The number of an instance's GPUs, built in and attached."""
    attached: int
    """The number of GPUs attached to the machine type; 0 for built-in GPUs."""
    market: Market
    """Spot or on-demand."""
    instances_max: int
    """The maximum number of instances of the whole pool."""
    metric: str
    """The region's quota that counts the GPUs; empty if none does."""
    disk_type: str
    """The type of the boot disk."""
    disk_gb: int
    """The size of the boot disk in GB."""
    has_own_image: bool
    """Whether the pool names a machine image."""
    has_address: bool
    """Whether an instance has a public address."""


def list_purchases(
    own_region: str, cluster: ClusterConfig, gives_addresses: bool
) -> list[Purchase]:
    """Return the offerings of all pools on Google Cloud.

    A pool without offerings has a single offering of the pool's default type. `own_region` is the
    region of pools that name none. With `gives_addresses`, instances of pools without a network of
    their own get public addresses.
    """
    found = []
    for pool, provider in gcp_pools(cluster):
        region = pool_region(own_region, provider)
        machine, network = provider.instance_type, provider.network_interface
        described = provider.described_types
        is_own = bool(network.network or network.subnetwork)
        default = Market.SPOT if machine.preemptible else Market.ON_DEMAND
        offered = [
            (offering.instance_type, Market(offering.market), offering.zone)
            for offering in provider.offerings
        ] or [(provider.default_type, default, "")]
        for name, market, zone in offered:
            instance = parse_instance_type(name)
            machine_type = instance.machine_type if instance else name
            found.append(
                Purchase(
                    pool=pool,
                    region=region,
                    zone=zone or provider.zone,
                    machine_type=machine_type,
                    accelerator=accelerator_of(instance, described) if instance else "",
                    gpus=(gpus_of(instance, described) or 0) if instance else 0,
                    attached=instance.number if instance else 0,
                    market=market,
                    instances_max=provider.max_instances,
                    metric=quota_metric(name, market, described),
                    disk_type=provider.boot_disk_type or boot_disk_type(machine_type),
                    disk_gb=provider.boot_disk_size,
                    has_own_image=bool(provider.boot_disk_source_image),
                    has_address=network.external_ip or (gives_addresses and not is_own),
                )
            )
    return found
