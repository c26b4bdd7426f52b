"""The requests of a launch to EC2: the launch template of its pool, and the fleet request itself.

A template's name holds a digest of everything in it, and no template is ever changed: so a
template of that name is the right one, and a request repeated with its token is the same request.
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pydantic import ValidationError

from control_plane.adapters import lazy_adapter
from control_plane.aws.instance_types import NETWORK_CARDS, NetworkCards, slots_of
from control_plane.fleet.records import IntentRow, Market, Offering
from provisioner.clouds.provider import CLUSTER_TAG, INTENT_TAG, POOL_TAG, ConfigurationError

USER_DATA_BYTES_MAX = 16 * 1024
# Drivers and a container engine, kept by AWS, in every region.
IMAGE_DEFAULT = (
    "resolve:ssm:/aws/service/deeplearning/ami/x86_64/"
    "base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id"
)
ROOT_DEVICE_DEFAULT = "/dev/sda1"
# Those of a gp3 disk that are in its price.
DISK_IOPS = 3000
DISK_THROUGHPUT = 125
CAPACITY_BLOCK = "capacity-block"
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
    root_volume_iops: int = DISK_IOPS
    root_volume_throughput: int = DISK_THROUGHPUT
    tag_key: str = "managed_by"
    tag_value: str = ""
    instance_name: str = "determined-ai-agent"
    network_interface: Network = Network()
    iam_instance_profile_arn: str = ""
    custom_tags: tuple[Tag, ...] = ()
    efa: bool = True
    cluster_placement: bool = True
    capacity_reservation: str = ""
    capacity_block: bool = False
    placement_groups: Mapping[str, str] = field(default_factory=dict)
    """The names of cluster placement groups by their zones; the deployment has them, no pool."""
    kms_key: str = ""
    """The key of disks; the deployment has it, no pool."""
    described_cards: NetworkCards | None = None
    """The network cards of the launched type as EC2 describes them, where the catalogue does not
    know it; a launch has them, no pool.
    """

    def default_offering(self) -> Offering:
        """The offering of pools that name none. Raises ConfigurationError."""
        slots = slots_of(self.instance_type, self.instance_slots, self.cpu_slots_allowed)
        if slots is None:
            text = f"provider.instance_type: {self.instance_type!r:.80} is not a known type"
            raise ConfigurationError(f"{text}; set its instance_slots")
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
    request: IntentRow, settings: Ec2Settings, user_data: bytes, root_device: str
) -> dict[str, Any]:
    """The launch template of a request's instances: that of all others of its pool, but for gangs
    on types with EFA and for capacity that is reserved. Raises ConfigurationError.
    """
    if len(user_data) > USER_DATA_BYTES_MAX:
        text = f"the boot script has {len(user_data)} bytes; EC2 takes {USER_DATA_BYTES_MAX}"
        raise ConfigurationError(f"{text}: shorten provider.startup_script")
    disk: dict[str, Any] = {
        "VolumeSize": settings.root_volume_size,
        "VolumeType": "gp3",
        "Encrypted": True,
        "DeleteOnTermination": True,
    }
    # A template is named by what is in it: nothing new where nothing is asked for.
    if settings.root_volume_iops != DISK_IOPS:
        disk["Iops"] = settings.root_volume_iops
    if settings.root_volume_throughput != DISK_THROUGHPUT:
        disk["Throughput"] = settings.root_volume_throughput
    if settings.kms_key:
        disk["KmsKeyId"] = settings.kms_key
    data: dict[str, Any] = {
        "ImageId": settings.image_id or IMAGE_DEFAULT,
        "UserData": base64.b64encode(user_data).decode(),
        "BlockDeviceMappings": [{"DeviceName": root_device, "Ebs": disk}],
        "NetworkInterfaces": _interfaces(request, settings),
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
    if settings.capacity_reservation and request.offering.market is Market.ON_DEMAND:
        data["CapacityReservationSpecification"] = {
            "CapacityReservationTarget": _reservation(settings.capacity_reservation)
        }
        if uses_block(request, settings):
            data["InstanceMarketOptions"] = {"MarketType": CAPACITY_BLOCK}
    return data


def uses_block(request: IntentRow, settings: Ec2Settings) -> bool:
    """Whether a request's instances are launched into a capacity block."""
    return settings.capacity_block and request.offering.market is Market.ON_DEMAND


def fabric_of(request: IntentRow, settings: Ec2Settings) -> NetworkCards | None:
    """The cards with Elastic Fabric Adapters of a request's instances; None without such."""
    return _network_cards(request, settings) if request.together and settings.efa else None


def _network_cards(request: IntentRow, settings: Ec2Settings) -> NetworkCards | None:
    return NETWORK_CARDS.get(request.offering.instance_type, settings.described_cards)


def _interfaces(request: IntentRow, settings: Ec2Settings) -> list[dict[str, Any]]:
    """The network interfaces. EC2 gives a public address to an instance with a single one alone, so
    that gangs with such addresses have a single adapter.
    """
    network, fabric = settings.network_interface, fabric_of(request, settings)
    groups = {"Groups": [network.security_group_id]} if network.security_group_id else {}
    first: dict[str, Any] = {
        "DeviceIndex": 0,
        "AssociatePublicIpAddress": network.public_ip,
        "DeleteOnTermination": True,
        **groups,
    }
    if fabric is None:
        return [first]
    is_first_plain = fabric.cards > fabric.adapters
    if network.public_ip:
        return [first if is_first_plain else {**first, "InterfaceType": "efa"}]
    del first["AssociatePublicIpAddress"]
    first |= {"NetworkCardIndex": 0} if is_first_plain else _card_fields(0, "efa")
    # The others need no address: what goes over them is no IP.
    more = {"DeviceIndex": 1, "DeleteOnTermination": True, **groups}
    others = [{**more, **_card_fields(index, "efa-only")} for index in range(1, fabric.cards)]
    return [first, *others]


def _card_fields(index: int, kind: str) -> dict[str, Any]:
    return {"NetworkCardIndex": index, "InterfaceType": kind}


def _reservation(name: str) -> dict[str, str]:
    is_group = name.startswith("arn:")
    return {"CapacityReservationResourceGroupArn" if is_group else "CapacityReservationId": name}


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
    zone = offering.zone or request.zone
    able = [subnet for subnet in subnets if zone in ("", subnet.zone)]
    if not able:
        known = ", ".join(sorted({subnet.zone for subnet in subnets})) or "none"
        text = f"no subnet is in zone {zone or 'any'!r:.40}; there are subnets in: {known}"
        raise ConfigurationError(f"{text}: set provider.network_interface.subnet_id")
    groups = _placement_groups(request, settings)
    overrides: list[dict[str, Any]] = [
        {
            "InstanceType": offering.instance_type,
            "SubnetId": subnet.id,
            **({"Placement": {"GroupName": groups[subnet.zone]}} if subnet.zone in groups else {}),
        }
        for subnet in sorted(able)
    ]
    if is_spot and settings.spot_max_price:
        overrides = [{**override, "MaxPrice": settings.spot_max_price} for override in overrides]
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
            "DefaultTargetCapacityType": _capacity_type(request, settings),
        },
        **_market_options(request, settings),
        "TagSpecifications": [
            {"ResourceType": kind, "Tags": tags} for kind in ("fleet", "instance", "volume")
        ],
    }


def _capacity_type(request: IntentRow, settings: Ec2Settings) -> str:
    if request.offering.market is Market.SPOT:
        return "spot"
    return CAPACITY_BLOCK if uses_block(request, settings) else "on-demand"


def _market_options(request: IntentRow, settings: Ec2Settings) -> dict[str, Any]:
    """The options of the request's market. A gang is in one zone, and all of it or nothing."""
    is_spot = request.offering.market is Market.SPOT
    if uses_block(request, settings):
        # A block is in one zone, and EC2 takes no options with it.
        return {}
    options: dict[str, Any] = {"AllocationStrategy": SPOT_ALLOCATION} if is_spot else {}
    if request.together:
        # EC2 takes a least capacity only with one of the other two.
        options |= {
            "SingleInstanceType": True,
            "SingleAvailabilityZone": True,
            "MinTargetCapacity": request.count,
        }
    if settings.capacity_reservation and not is_spot:
        strategy = {"UsageStrategy": "use-capacity-reservations-first"}
        options["CapacityReservationOptions"] = strategy
    if not options:
        return {}
    return {"SpotOptions" if is_spot else "OnDemandOptions": options}


def _placement_groups(request: IntentRow, settings: Ec2Settings) -> Mapping[str, str]:
    """The cluster placement groups by zone of a gang on a type with EFA. What is in a capacity
    block is close to each other anyway.
    """
    wants = request.together and settings.cluster_placement and not uses_block(request, settings)
    has_fabric = _network_cards(request, settings) is not None
    return settings.placement_groups if wants and has_fabric else {}


def ec2_tags(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Tags in EC2's format."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]
