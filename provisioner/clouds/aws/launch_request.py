"""The parameters of EC2 launches: the launch template and the fleet request. No API calls.

The name of a launch template includes a digest of its content, and templates are never changed. An
existing template of that name therefore has the right content, and a request that is repeated with
its token is identical to the first.
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pydantic import ValidationError

from control_plane.adapters import lazy_adapter
from control_plane.aws.instance_types import NETWORK_CARDS, TYPE_DEFAULT, NetworkCards, slots_of
from control_plane.fleet.records import IntentRow, Market, Offering
from provisioner.clouds.provider import CLUSTER_TAG, INTENT_TAG, POOL_TAG, ConfigurationError

USER_DATA_BYTES_MAX = 16 * 1024
# AWS maintains this image in every region, with NVIDIA's driver, whose open kernel modules need
# Turing or newer, and with Docker and NVIDIA's container toolkit.
IMAGE_DEFAULT = (
    "resolve:ssm:/aws/service/deeplearning/ami/x86_64/"
    "base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id"
)
ROOT_DEVICE_DEFAULT = "/dev/sda1"
# The operations per second, and the throughput in MiB/s, that the price of a gp3 disk includes.
DISK_IOPS = 3000
DISK_THROUGHPUT = 125
CAPACITY_BLOCK = "capacity-block"
# EC2 chooses the cheapest of the zones with the lowest risk of interruption.
SPOT_ALLOCATION = "price-capacity-optimized"


@dataclass(frozen=True, slots=True)
class Network:
    """The network settings of instances, documented in pool_provider.NetworkInterface."""

    public_ip: bool = True
    subnet_id: str = ""
    subnet_ids: tuple[str, ...] = ()
    security_group_id: str = ""

    @property
    def subnets(self) -> tuple[str, ...]:
        """Return the ids of all subnets that the settings name, without duplicates.

        `subnet_id` comes first. Return () if the settings name no subnet.
        """
        return tuple(dict.fromkeys(filter(None, (self.subnet_id, *self.subnet_ids))))


@dataclass(frozen=True, slots=True)
class Tag:
    """A tag from the pool's settings."""

    key: str
    value: str = ""


@dataclass(frozen=True, slots=True)
class Ec2Settings:
    """A pool's EC2 settings.

    control_plane.aws.pool_provider.AwsProvider documents the fields without a text here.
    """

    region: str = ""
    ssh_key_name: str = ""
    instance_type: str = TYPE_DEFAULT
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
    """The names of cluster placement groups by zone; only the deployment sets them."""
    kms_key: str = ""
    """The KMS key that encrypts disks; only the deployment sets it."""
    described_cards: NetworkCards | None = None
    """The launched type's network cards from EC2, if the catalogue lacks the type.

    Only a launch sets them.
    """

    def default_offering(self) -> Offering:
        """Return the offering of `instance_type`, for pools without a list of offerings.

        The name is `TYPE/MARKET`. The offering has any zone and no price. The slots are
        `instance_slots`, or else the GPUs of the instance type. With `cpu_slots_allowed`, 1 slot
        replaces 0 slots. Raises ConfigurationError if the number of slots is unknown.
        """
        slots = slots_of(self.instance_type, self.instance_slots, self.cpu_slots_allowed)
        if slots is None:
            text = f"provider.instance_type: {self.instance_type!r:.80} is not a known type"
            raise ConfigurationError(f"{text}; set its instance_slots")
        market = Market.SPOT if self.spot else Market.ON_DEMAND
        name = f"{self.instance_type}/{market}"
        return Offering(name, self.instance_type, "", market, slots)


_SETTINGS = lazy_adapter(Ec2Settings)


class Subnet(NamedTuple):
    """A subnet in which instances may be launched."""

    id: str
    zone: str


def parse_section(section: str) -> Ec2Settings:
    """Parse a pool's EC2 settings from JSON; "" gives the defaults.

    Unknown fields are ignored. The deployment's values are not added. Raises ConfigurationError for
    invalid JSON or a wrong value, naming the first field.
    """
    try:
        return _SETTINGS().validate_json(section or "{}")
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        place = ".".join(map(str, ("provider", *first["loc"])))
        raise ConfigurationError(f"{place}: {first['msg']}") from None


def launch_template_data(
    request: IntentRow, settings: Ec2Settings, user_data: bytes, root_device: str
) -> dict[str, Any]:
    """Return the content of a request's launch template, in the form of EC2's API; call nothing.

    The content is the same for all requests of a pool, with two exceptions: `together` requests on
    types with Elastic Fabric Adapters, and on-demand requests that use reserved capacity. The
    instance type, subnets and tags are those of the fleet request instead. Without an image in the
    settings, the image is IMAGE_DEFAULT. The root disk is encrypted, and deleted with the instance.
    A shutdown from inside terminates the instance.

    Args:
        request: the launch attempt.
        settings: the pool's settings.
        user_data: the boot script.
        root_device: the name of the image's root disk.

    Raises:
        ConfigurationError: the boot script is longer than USER_DATA_BYTES_MAX.
    """
    if len(user_data) > USER_DATA_BYTES_MAX:
        text = f"the boot script has {len(user_data)} bytes; EC2 takes {USER_DATA_BYTES_MAX}"
        raise ConfigurationError(f"{text}: shorten provider.startup_script or ca_certificates")
    data: dict[str, Any] = {
        "ImageId": settings.image_id or IMAGE_DEFAULT,
        "UserData": base64.b64encode(user_data).decode(),
        "BlockDeviceMappings": [{"DeviceName": root_device, "Ebs": _root_disk(settings)}],
        "NetworkInterfaces": _interfaces(request, settings),
        # A shutdown from inside terminates the machine: a stopped machine would still cost money.
        "InstanceInitiatedShutdownBehavior": "terminate",
        # A hop limit of 1 keeps containers of trials from the instance's credentials.
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
    return {**data, **_reserved_capacity(request, settings)}


def _root_disk(settings: Ec2Settings) -> dict[str, Any]:
    """Return the root disk of an instance, which is encrypted, and deleted with the instance.

    Operations and throughput are set only if they differ from the included ones. The deployment's
    KMS key encrypts the disk, if set, or else the account's default key.
    """
    disk: dict[str, Any] = {
        "VolumeSize": settings.root_volume_size,
        "VolumeType": "gp3",
        "Encrypted": True,
        "DeleteOnTermination": True,
    }
    # Default values would change the digest and give every existing pool a new template.
    if settings.root_volume_iops != DISK_IOPS:
        disk["Iops"] = settings.root_volume_iops
    if settings.root_volume_throughput != DISK_THROUGHPUT:
        disk["Throughput"] = settings.root_volume_throughput
    if settings.kms_key:
        disk["KmsKeyId"] = settings.kms_key
    return disk


def _reserved_capacity(request: IntentRow, settings: Ec2Settings) -> dict[str, Any]:
    """Return the template's fields about capacity reservations.

    The fields name the pool's reservation, and the market if the reservation is a capacity block.
    Without a reservation in the settings, the fields keep instances out of all reservations. Return
    an empty dict for a spot request of a pool with a reservation.
    """
    if not settings.capacity_reservation:
        # Without this field, EC2 fills any open reservation of the account with the same type.
        return {"CapacityReservationSpecification": {"CapacityReservationPreference": "none"}}
    if request.offering.market is not Market.ON_DEMAND:
        return {}
    target = {"CapacityReservationTarget": _reservation(settings.capacity_reservation)}
    fields: dict[str, Any] = {"CapacityReservationSpecification": target}
    if uses_block(request, settings):
        fields["InstanceMarketOptions"] = {"MarketType": CAPACITY_BLOCK}
    return fields


def uses_block(request: IntentRow, settings: Ec2Settings) -> bool:
    """Whether a request is launched into the pool's capacity block.

    True for an on-demand request, if the settings have a block. A spot request never uses a block.
    """
    return settings.capacity_block and request.offering.market is Market.ON_DEMAND


def fabric_of(request: IntentRow, settings: Ec2Settings) -> NetworkCards | None:
    """Return the network cards to equip with Elastic Fabric Adapters (EFA).

    Return None unless the request is `together`, the pool allows EFA and the type has EFA.
    """
    return _network_cards(request, settings) if request.together and settings.efa else None


def _network_cards(request: IntentRow, settings: Ec2Settings) -> NetworkCards | None:
    """Return the network cards of the offering's type, by the catalogue or the settings.

    Return None for a type without EFA. `settings.described_cards` counts for any type that the
    catalogue lacks.
    """
    return NETWORK_CARDS.get(request.offering.instance_type, settings.described_cards)


def _interfaces(request: IntentRow, settings: Ec2Settings) -> list[dict[str, Any]]:
    """Return the network interfaces of a request's instances, in the form of EC2's API.

    - Without EFA (`fabric_of` returns None): a single interface, with a public address if the
      settings want one.
    - With EFA and public addresses: a single interface, because EC2 gives public addresses only to
      instances with a single one. The interface has an EFA, if the first card has one.
    - With EFA and without public addresses: an interface for each card. All have an EFA, except for
      a first card without one.

    All interfaces have the settings' security group, if set, or else the network's default group.
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
    # Interfaces after the first carry no IP traffic and need no address.
    more = {"DeviceIndex": 1, "DeleteOnTermination": True, **groups}
    others = [{**more, **_card_fields(index, "efa-only")} for index in range(1, fabric.cards)]
    return [first, *others]


def _card_fields(index: int, kind: str) -> dict[str, Any]:
    """Return the fields NetworkCardIndex and InterfaceType of an interface of type `kind` on card
    `index`.

    The caller adds DeviceIndex.
    """
    return {"NetworkCardIndex": index, "InterfaceType": kind}


def _reservation(name: str) -> dict[str, str]:
    """Return the target for a reservation's id, or for the ARN of a group of reservations."""
    is_group = name.startswith("arn:")
    return {"CapacityReservationResourceGroupArn" if is_group else "CapacityReservationId": name}


def launch_template_name(request: IntentRow, data: Mapping[str, Any]) -> str:
    """Return a launch template's name: cluster, pool, and a digest of content and settings.

    Equal content and settings give the same name. The digest includes the pool's whole section of
    settings, because other settings make another request. The cluster's name is cut to 36
    characters.
    """
    content = json.dumps([data, request.section], sort_keys=True).encode()
    digest = hashlib.sha256(content).hexdigest()[:16]
    return f"detcloud-{request.cluster[:36]}-{request.pool}-{digest}"


def instance_tags(request: IntentRow, settings: Ec2Settings) -> dict[str, str]:
    """Return the tags of an instance and of the disks, merged by key.

    Of several tags with a key, the first in this order counts:

    1. The tags of the cluster, the pool and the launch.
    2. The name, `instance_name` of the settings.
    3. The owner's tag, `tag_key` and `tag_value` of the settings. Without a value, the value is the
       cluster.
    4. The custom tags of the settings, the last one first.
    """
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
    """Return the parameters of CreateFleet for a launch attempt; call nothing.

    The fleet uses the subnets of the offering's zone, or else of the request's zone, or else all.
    Instances are placed in the zone's placement group if `_placement_groups` returns the group. A
    repeated request has the same client token, by which EC2 recognizes a repetition, and the same
    parameters. A `together` request is launched in a single zone, completely or not at all. This
    does not hold for a capacity block: the block is in one zone, and a part may be launched. Any
    other request gets as many instances as available. A spot request has the settings' maximum
    price, if set.

    Args:
        request: the launch attempt.
        settings: the pool's settings.
        template: the name of the launch template.
        subnets: the pool's subnets.

    Raises:
        ConfigurationError: no subnet is in the zone.
    """
    offering, is_spot = request.offering, request.offering.market is Market.SPOT
    groups = _placement_groups(request, settings)
    overrides: list[dict[str, Any]] = [
        {
            "InstanceType": offering.instance_type,
            "SubnetId": subnet.id,
            **({"Placement": {"GroupName": groups[subnet.zone]}} if subnet.zone in groups else {}),
        }
        for subnet in sorted(_subnets_to_use(request, subnets))
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


def _subnets_to_use(request: IntentRow, subnets: Sequence[Subnet]) -> list[Subnet]:
    """Return the subnets in the offering's zone, or else in the request's zone, or else all.

    Raises ConfigurationError, naming the zones of `subnets`, if no subnet is left.
    """
    zone = request.offering.zone or request.zone
    in_zone = [subnet for subnet in subnets if zone in ("", subnet.zone)]
    if not in_zone:
        known = ", ".join(sorted({subnet.zone for subnet in subnets})) or "none"
        text = f"no subnet is in zone {zone or 'any'!r:.40}; there are subnets in: {known}"
        raise ConfigurationError(f"{text}: set provider.network_interface.subnet_id")
    return in_zone


def _capacity_type(request: IntentRow, settings: Ec2Settings) -> str:
    """Return EC2's name of the request's market: `spot`, `on-demand` or `capacity-block`."""
    if request.offering.market is Market.SPOT:
        return "spot"
    return CAPACITY_BLOCK if uses_block(request, settings) else "on-demand"


def _market_options(request: IntentRow, settings: Ec2Settings) -> dict[str, Any]:
    """Return the fleet options of the request's market: spot strategy, minimum and reservation.

    A `together` request is launched in a single zone, completely or not at all. Reserved capacity
    is used first by on-demand requests. Return an empty dict without options, and for a capacity
    block: EC2 accepts none, so only a part of a `together` request may be launched.
    """
    is_spot = request.offering.market is Market.SPOT
    if uses_block(request, settings):
        return {}
    options: dict[str, Any] = {"AllocationStrategy": SPOT_ALLOCATION} if is_spot else {}
    if request.together:
        # EC2 accepts MinTargetCapacity only with SingleInstanceType or SingleAvailabilityZone.
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
    """Return the placement groups' names by zone, for `together` requests on types with EFA.

    Return an empty map for other requests, if the pool forbids placement groups, and for a capacity
    block, whose instances are close together anyway. A zone without a group is absent.
    """
    wants = request.together and settings.cluster_placement and not uses_block(request, settings)
    has_fabric = _network_cards(request, settings) is not None
    return settings.placement_groups if wants and has_fabric else {}


def ec2_tags(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Convert tags by key to the list form of EC2's API."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]
