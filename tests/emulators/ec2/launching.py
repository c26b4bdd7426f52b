"""Launch templates, fleets and single launches of the simulated EC2."""

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.emulators.ec2.machine import Ec2Error, Machine, moment, tag_list, tags_for
from tests.emulators.ec2.region import Params, Region, Result, Template, types, vcpus

USER_DATA_BYTES_MAX = 16384


class Place(NamedTuple):
    """A candidate place for the machines of a launch, from an override of a fleet."""

    instance_type: str
    subnet: str
    zone: str
    price_max: float | None
    override: Mapping[str, Any]


@dataclass(frozen=True)
class Order:
    """The common settings of a launch's machines."""

    data: Mapping[str, Any]
    is_spot: bool
    token: str
    tags: list[dict[str, Any]]

    @property
    def market(self) -> str:
        return "spot" if self.is_spot else "on-demand"


def create_launch_template(region: Region, params: Params) -> Result:
    def make_template() -> Result:
        name = params["LaunchTemplateName"]
        if any(template.name == name for template in region.templates.values()):
            code = "InvalidLaunchTemplateName.AlreadyExistsException"
            raise Ec2Error(code, "Launch template name already in use.")
        _user_data(params["LaunchTemplateData"])
        _end_dry_run(params)
        tags = tags_for("launch-template", params.get("TagSpecifications"))
        key = f"lt-{region.number():017x}"
        data = params["LaunchTemplateData"]
        region.templates[key] = Template(key, name, data, tags, region.clock())
        return {"LaunchTemplate": shown_template(region.templates[key])}

    return region.answer_once("CreateLaunchTemplate", params, make_template)


def delete_launch_template(region: Region, params: Params) -> Result:
    template = _template(region, params)
    del region.templates[template.id]
    return {"LaunchTemplate": shown_template(template)}


def shown_template(template: Template) -> Result:
    return {
        "LaunchTemplateId": template.id,
        "LaunchTemplateName": template.name,
        "CreateTime": moment(template.created_ms),
        "DefaultVersionNumber": 1,
        "LatestVersionNumber": 1,
        "Tags": tag_list(template.tags),
    }


def create_fleet(region: Region, params: Params) -> Result:
    if params.get("Type") != "instant":
        raise Ec2Error("InvalidParameterValue", "only fleets of type instant are simulated")
    if params.get("DryRun"):
        # EC2 checks the permissions, and that the launch templates exist.
        for config in params["LaunchTemplateConfigs"]:
            _template(region, config["LaunchTemplateSpecification"])
        _end_dry_run(params)
    return region.answer_once("CreateFleet", params, lambda: _fleet(region, params))


def _end_dry_run(params: Params) -> None:
    """Raise the answer to a request with DryRun that passed all checks."""
    if params.get("DryRun"):
        text = "Request would have succeeded, but DryRun flag is set."
        raise Ec2Error("DryRunOperation", text)


def _fleet(region: Region, params: Params) -> Result:
    capacity = params["TargetCapacitySpecification"]
    is_spot = capacity["DefaultTargetCapacityType"] == "spot"
    options = params.get("SpotOptions" if is_spot else "OnDemandOptions") or {}
    _check_options(params, options)
    strategy = options.get("AllocationStrategy", "lowest-price")
    left, errors, groups = int(capacity["TotalTargetCapacity"]), list[Result](), list[Result]()
    for config in params["LaunchTemplateConfigs"]:
        specification = config["LaunchTemplateSpecification"]
        template = _template(region, specification)
        if str(specification.get("Version")) not in ("1", "$Latest", "$Default"):
            code = "InvalidLaunchTemplateId.VersionNotFound"
            raise Ec2Error(code, "Could not find launch template version")
        tags = params.get("TagSpecifications") or []
        order = Order(template.data, is_spot, params.get("ClientToken", ""), tags)
        overrides = config.get("Overrides") or [{}]
        places = [_place(region, {**template.data, **override}, override) for override in overrides]
        if options.get("SingleAvailabilityZone"):
            places = _places_of_one_zone(region, places, order, left)
        for place in _by_preference(region, places, is_spot, strategy):
            machines = list[Machine]()
            while left and (refusal := _refusal(region, place, order)) is None:
                machines.append(_new_machine(region, place, order))
                left -= 1
            about = {
                "LaunchTemplateAndOverrides": {
                    "LaunchTemplateSpecification": specification,
                    "Overrides": dict(place.override),
                },
                "Lifecycle": order.market,
            }
            if machines:
                ids = [machine.id for machine in machines]
                groups.append({**about, "InstanceIds": ids, "InstanceType": place.instance_type})
            if left and refusal is not None:
                errors.append({**about, "ErrorCode": refusal.code, "ErrorMessage": refusal.message})
    launched = [region.machines[name] for group in groups for name in group["InstanceIds"]]
    if len(launched) < int(options.get("MinTargetCapacity") or 0):
        for machine in launched:
            del region.machines[machine.id]
        groups = []
    fleet = f"fleet-{region.number():08x}"
    return {"FleetId": fleet, "Errors": errors, "Instances": groups}


def _check_options(params: Params, options: Mapping[str, Any]) -> None:
    kind = params["TargetCapacitySpecification"]["DefaultTargetCapacityType"]
    if kind == "capacity-block" and (params.get("OnDemandOptions") or params.get("SpotOptions")):
        text = "no options of a market go with a target capacity type of capacity-block"
        raise Ec2Error("InvalidParameterCombination", text)
    single = options.get("SingleAvailabilityZone") or options.get("SingleInstanceType")
    if options.get("MinTargetCapacity") and not single:
        text = "MinTargetCapacity needs SingleInstanceType or SingleAvailabilityZone"
        raise Ec2Error("InvalidParameterCombination", text)


def _places_of_one_zone(
    region: Region, places: list[Place], order: Order, count: int
) -> list[Place]:
    """Return the places of the zone with the most room for `count` machines."""
    room = {
        place.zone: min(count, _room(region, place, order.market)) for place in reversed(places)
    }
    best = max(dict.fromkeys(place.zone for place in places), key=lambda zone: room[zone])
    return [place for place in places if place.zone == best]


def run_instances(region: Region, params: Params) -> Result:
    return region.answer_once("RunInstances", params, lambda: _run(region, params))


def _run(region: Region, params: Params) -> Result:
    template = params.get("LaunchTemplate")
    below = _template(region, template).data if template else {}
    data = {**below, **{name: value for name, value in params.items() if value is not None}}
    place = _place(region, data, {})
    is_spot = (data.get("InstanceMarketOptions") or {}).get("MarketType") == "spot"
    tags = params.get("TagSpecifications") or below.get("TagSpecifications") or []
    order = Order(data, is_spot, params.get("ClientToken", ""), tags)
    refusal = None
    machines = list[Machine]()
    while len(machines) < params["MaxCount"] and refusal is None:
        refusal = _refusal(region, place, order)
        if refusal is None:
            machines.append(_new_machine(region, place, order))
    if refusal is not None and len(machines) < params["MinCount"]:
        for machine in machines:
            del region.machines[machine.id]
        raise refusal
    if params.get("DryRun"):
        for machine in machines:
            del region.machines[machine.id]
        _end_dry_run(params)
    now_ms = region.clock()
    return {
        "ReservationId": f"r-{region.number():017x}",
        "Instances": [machine.description(now_ms) for machine in machines],
    }


def _by_preference(
    region: Region, places: list[Place], is_spot: bool, strategy: str
) -> Iterable[Place]:
    """Sort the places of a launch.

    Spot places are sorted by room and then by price, or by price alone with `lowest-price`. Places
    on demand keep their order.
    """
    if not is_spot:
        return places

    def key(place: Place) -> tuple[int, float]:
        if place.instance_type not in types():
            return 0, 0
        price = region.spot_price(place.instance_type, place.zone)
        return 0 if strategy == "lowest-price" else -_room(region, place, "spot"), price

    return sorted(places, key=key)


def _room(region: Region, place: Place, market: str) -> int:
    key = (place.instance_type, place.zone, market)
    used = sum(
        (
            billed_machine.instance_type,
            billed_machine.zone,
            "spot" if billed_machine.is_spot else "on-demand",
        )
        == key
        for billed_machine in region.billed_machines()
    )
    return region.capacity.get(key, 1000) - used


def _refusal(region: Region, place: Place, order: Order) -> Ec2Error | None:
    """Return why a place has no room for a further machine, or None if the launch is possible."""
    kind, zone = place.instance_type, place.zone
    if kind not in types():
        return Ec2Error("InvalidParameterValue", f"Invalid value '{kind}' for InstanceType.")
    image = order.data.get("ImageId", "")
    if image not in region.images and not image.startswith("resolve:ssm:/aws/service/"):
        return Ec2Error("InvalidAMIID.NotFound", f"The image id '[{image}]' does not exist")
    if region.allowed_images == "enabled" and image in region.refused_images:
        return Ec2Error("InvalidAMIID.NotFound", f"The image id '[{image}]' does not exist")
    if (kind, zone) in region.not_offered:
        text = f"Your requested instance type ({kind}) is not supported in your requested "
        return Ec2Error("InvalidFleetConfiguration", f"{text}Availability Zone ({zone}).")
    if refusal := _network_refusal(region, place, order):
        return refusal
    if _is_over_quota(region, kind, order):
        return _over_quota(order)
    if order.is_spot and place.price_max is not None:
        price = region.spot_price(kind, zone)
        if place.price_max < price:
            text = f"Your Spot request price of {place.price_max} is lower than the minimum "
            return Ec2Error("SpotMaxPriceTooLow", f"{text}required fulfillment price of {price}.")
    if _room(region, place, order.market) <= 0:
        text = f"We currently do not have sufficient {kind} capacity in the Availability Zone you"
        return Ec2Error("InsufficientInstanceCapacity", f"{text} requested ({zone}).")
    return None


def _network_refusal(region: Region, place: Place, order: Order) -> Ec2Error | None:
    """Return why a machine cannot have the requested interfaces or placement group, or None."""
    interfaces = order.data.get("NetworkInterfaces") or []
    if len(interfaces) > 1 and any(
        "AssociatePublicIpAddress" in interface for interface in interfaces
    ):
        text = "The associatePublicIPAddress parameter cannot be specified when launching with "
        return Ec2Error("InvalidParameterCombination", f"{text}multiple network interfaces.")
    network = types()[place.instance_type]["NetworkInfo"]
    adapters = [
        interface
        for interface in interfaces
        if interface.get("InterfaceType", "").startswith("efa")
    ]
    most = (network.get("EfaInfo") or {}).get("MaximumEfaInterfaces", 0)
    cards = {int(interface.get("NetworkCardIndex") or 0) for interface in interfaces}
    if len(adapters) > most or not cards <= set(range(network["MaximumNetworkCards"])):
        text = f"{place.instance_type} supports {most} EFA interfaces"
        return Ec2Error("InvalidParameterCombination", text)
    group = (place.override.get("Placement") or {}).get("GroupName")
    groups = region.placement_groups
    if group is not None and groups is not None and group not in groups:
        return Ec2Error(
            "InvalidPlacementGroup.Unknown", f"The Placement Group '{group}' is unknown."
        )
    return None


def _is_over_quota(region: Region, kind: str, order: Order) -> bool:
    used = sum(
        vcpus(billed_machine.instance_type)
        for billed_machine in region.billed_machines()
        if billed_machine.is_spot == order.is_spot
    )
    quota = region.quota.get(order.market)
    return quota is not None and used + vcpus(kind) > quota


def _over_quota(order: Order) -> Ec2Error:
    if order.is_spot:
        return Ec2Error("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded")
    text = "You have requested more vCPU capacity than your current vCPU limit allows."
    return Ec2Error("VcpuLimitExceeded", text)


def _new_machine(region: Region, place: Place, order: Order) -> Machine:
    now_ms, n = region.clock(), region.number()
    boots = region.sleepers <= 0
    region.sleepers -= not boots
    machine = Machine(
        id=f"i-{n:017x}",
        instance_type=place.instance_type,
        zone=place.zone,
        subnet=place.subnet,
        image=order.data["ImageId"],
        is_spot=order.is_spot,
        tags=tags_for("instance", order.tags),
        volume_tags=tags_for("volume", order.tags),
        data=order.data,
        user_data=_user_data(order.data),
        token=order.token,
        launched_ms=now_ms,
        visible_ms=now_ms + region.visible_ms,
        running_ms=now_ms + region.running_ms,
        ending_ms=region.ending_ms,
        address=f"10.0.{n >> 8 & 255}.{n & 255}",
        boots=boots,
    )
    region.machines[machine.id] = machine
    return machine


def _place(region: Region, data: Mapping[str, Any], override: Mapping[str, Any]) -> Place:
    interfaces = data.get("NetworkInterfaces") or [{}]
    if "SubnetId" in data and "SubnetId" in interfaces[0] and not override:
        text = "Network interfaces and an instance-level subnet ID may not be specified together"
        raise Ec2Error("InvalidParameterCombination", text)
    subnet = data.get("SubnetId") or interfaces[0].get("SubnetId", "")
    if subnet and subnet not in region.subnets:
        text = f"The subnet ID '{subnet}' does not exist"
        raise Ec2Error("InvalidSubnetID.NotFound", text)
    zone = region.subnets.get(subnet) or data.get("AvailabilityZone")
    zone = zone or (data.get("Placement") or {}).get("AvailabilityZone") or region.zones[0]
    subnet = subnet or next(key for key, name in region.subnets.items() if name == zone)
    price = data.get("MaxPrice")
    return Place(
        data.get("InstanceType", "m1.small"),
        subnet,
        zone,
        None if price is None else float(price),
        override,
    )


def _template(region: Region, given: Mapping[str, Any]) -> Template:
    name, key = given.get("LaunchTemplateName"), given.get("LaunchTemplateId")
    for template in region.templates.values():
        if template.id == key or template.name == name:
            return template
    if key:
        raise Ec2Error("InvalidLaunchTemplateId.NotFound", f"The template {key} does not exist.")
    code = "InvalidLaunchTemplateName.NotFoundException"
    text = "At least one of the launch templates specified in the request does not exist."
    raise Ec2Error(code, text)


def _user_data(data: Mapping[str, Any]) -> bytes:
    try:
        content = base64.b64decode(data.get("UserData") or "", validate=True)
    except binascii.Error:
        raise Ec2Error(
            "InvalidUserData.Malformed", "Invalid BASE64 encoding of user data"
        ) from None
    if len(content) > USER_DATA_BYTES_MAX:
        raise Ec2Error("InvalidUserData.Malformed", "User data is limited to 16384 bytes")
    return content
