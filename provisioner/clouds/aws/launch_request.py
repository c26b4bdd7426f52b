"""The requests of a launch to EC2: the launch template of its pool, and the fleet request itself.

A template's name holds a digest of everything in it, and no template is ever changed: so whoever
finds the name has the right template, and a request repeated with its token is the same request.
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic import ValidationError

from control_plane.adapters import lazy_adapter
from control_plane.aws.instance_types import slots_of
from control_plane.fleet.records import IntentRow, Market, Offering
from provisioner.clouds.provider import CLUSTER_TAG, INTENT_TAG, POOL_TAG, ConfigurationError

USER_DATA_BYTES_MAX = 16 * 1024
# Drivers and a container engine, kept by AWS, in every region.
IMAGE_DEFAULT = (
    "resolve:ssm:/aws/service/deeplearning/ami/x86_64/"
    "base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id"
)
ROOT_DEVICE_DEFAULT = "/dev/sda1"
# From the zones where machines are least likely to be taken away again, the cheapest.
SPOT_ALLOCATION = "price-capacity-optimized"


@dataclass(frozen=True, slots=True)
class Network:
    """The connection of instances, control_plane.aws.pool_provider.NetworkInterface, parsed."""

    public_ip: bool = True
    subnet_id: str = ""
    subnet_ids: tuple[str, ...] = ()
    security_group_id: str = ""

    @property
    def subnets(self) -> tuple[str, ...]:
        """All subnets that are named."""
        return tuple(dict.fromkeys(filter(None, (self.subnet_id, *self.subnet_ids))))


@dataclass(frozen=True, slots=True)
class Tag:
    """A tag that the pool's settings add."""

    key: str
    value: str = ""


@dataclass(frozen=True, slots=True)
class Ec2Settings:
    """The settings of a pool's provider, control_plane.aws.pool_provider.AwsProvider, parsed."""

    region: str = ""
    ssh_key_name: str = ""
    instance_type: str = "g4dn.metal"
    instance_slots: int | None = None
    cpu_slots_allowed: bool = False
    spot: bool = False
    spot_max_price: str = ""
    image_id: str = ""
    root_volume_size: int = 200
    tag_key: str = "managed_by"
    tag_value: str = ""
    instance_name: str = "determined-ai-agent"
    network_interface: Network = Network()
    iam_instance_profile_arn: str = ""
    custom_tags: tuple[Tag, ...] = ()

    def default_offering(self) -> Offering:
        """The offering of pools that name none. Raises ConfigurationError."""
        slots = slots_of(self.instance_type, self.instance_slots, self.cpu_slots_allowed)
        if slots is None:
            text = f"provider.instance_type: {self.instance_type!r:.80} is no known type"
            raise ConfigurationError(f"{text}; say its instance_slots")
        market = Market.SPOT if self.spot else Market.ON_DEMAND
        name = f"{self.instance_type}/{market}"
        return Offering(name, self.instance_type, "", market, slots)


_SETTINGS = lazy_adapter(Ec2Settings)


class Subnet(NamedTuple):
    """A subnet for instances, and its zone."""

    id: str
    zone: str


def parse_section(section: str) -> Ec2Settings:
    """Parse the settings of a pool's section. Raises ConfigurationError."""
    try:
        return _SETTINGS().validate_json(section or "{}")
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        place = ".".join(map(str, ("provider", *first["loc"])))
        raise ConfigurationError(f"{place}: {first['msg']}") from None


def launch_template_data(
    settings: Ec2Settings, user_data: bytes, root_device: str
) -> dict[str, Any]:
    """The launch template of all instances of the pool. Raises ConfigurationError."""
    if len(user_data) > USER_DATA_BYTES_MAX:
        text = f"the boot script has {len(user_data)} bytes; EC2 takes {USER_DATA_BYTES_MAX}"
        raise ConfigurationError(f"{text}: shorten provider.startup_script")
    network = settings.network_interface
    interface: dict[str, Any] = {
        "DeviceIndex": 0,
        "AssociatePublicIpAddress": network.public_ip,
        "DeleteOnTermination": True,
    }
    if network.security_group_id:
        interface["Groups"] = [network.security_group_id]
    disk = {
        "VolumeSize": settings.root_volume_size,
        "VolumeType": "gp3",
        "Encrypted": True,
        "DeleteOnTermination": True,
    }
    data: dict[str, Any] = {
        "ImageId": settings.image_id or IMAGE_DEFAULT,
        "UserData": base64.b64encode(user_data).decode(),
        "BlockDeviceMappings": [{"DeviceName": root_device, "Ebs": disk}],
        "NetworkInterfaces": [interface],
        # Its own shutdown timer ends it: a machine that stopped would still cost its disk.
        "InstanceInitiatedShutdownBehavior": "terminate",
        # One hop: what trials run in containers is one further, and is not to be the agent.
        "MetadataOptions": {
            "HttpEndpoint": "enabled",
            "HttpTokens": "required",
            "HttpPutResponseHopLimit": 1,
            "InstanceMetadataTags": "enabled",
        },
        "Monitoring": {"Enabled": False},
    }
    if settings.iam_instance_profile_arn:
        data["IamInstanceProfile"] = {"Arn": settings.iam_instance_profile_arn}
    if settings.ssh_key_name:
        data["KeyName"] = settings.ssh_key_name
    return data


def launch_template_name(request: IntentRow, data: Mapping[str, Any]) -> str:
    """The name of the pool's launch template. The section is in its digest as a whole: another
    section is another request.
    """
    content = json.dumps([data, request.section], sort_keys=True).encode()
    digest = hashlib.sha256(content).hexdigest()[:16]
    return f"detcloud-{request.cluster[:36]}-{request.pool}-{digest}"


def instance_tags(request: IntentRow, settings: Ec2Settings) -> dict[str, str]:
    """The tags of an instance and its disks; the user's cannot replace ours."""
    return {
        **{tag.key: tag.value for tag in settings.custom_tags},
        settings.tag_key: settings.tag_value or request.cluster,
        "Name": settings.instance_name,
        CLUSTER_TAG: request.cluster,
        POOL_TAG: request.pool,
        INTENT_TAG: request.id,
    }


def fleet_request(
    request: IntentRow, settings: Ec2Settings, template: str, subnets: Sequence[Subnet]
) -> dict[str, Any]:
    """The fleet request of one attempt: the offering's type in each subnet of its zone, or in all.
    Raises ConfigurationError where there is none.
    """
    offering, is_spot = request.offering, request.offering.market is Market.SPOT
    able = [it for it in subnets if offering.zone in ("", it.zone)]
    if not able:
        known = ", ".join(sorted({it.zone for it in subnets})) or "none"
        text = f"no subnet is in zone {offering.zone or 'any'!r:.40}; there are subnets in: {known}"
        raise ConfigurationError(f"{text}: set provider.network_interface.subnet_id")
    overrides: list[dict[str, Any]] = [
        {"InstanceType": offering.instance_type, "SubnetId": it.id} for it in sorted(able)
    ]
    if is_spot and settings.spot_max_price:
        overrides = [{**it, "MaxPrice": settings.spot_max_price} for it in overrides]
    tags = ec2_tags(instance_tags(request, settings))
    return {
        "Type": "instant",
        "ClientToken": request.token,
        "LaunchTemplateConfigs": [
            {
                "LaunchTemplateSpecification": {"LaunchTemplateName": template, "Version": "1"},
                "Overrides": overrides,
            }
        ],
        "TargetCapacitySpecification": {
            "TotalTargetCapacity": request.count,
            "DefaultTargetCapacityType": "spot" if is_spot else "on-demand",
        },
        **({"SpotOptions": {"AllocationStrategy": SPOT_ALLOCATION}} if is_spot else {}),
        "TagSpecifications": [
            {"ResourceType": kind, "Tags": tags} for kind in ("fleet", "instance", "volume")
        ],
    }


def ec2_tags(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Tags in EC2's format."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]
