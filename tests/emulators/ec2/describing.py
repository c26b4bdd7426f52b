"""The descriptions of the simulated EC2, page by page, and the end of its machines."""

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from tests.emulators.ec2.launching import shown_template
from tests.emulators.ec2.machine import Ec2Error, Machine, moment, shown_state
from tests.emulators.ec2.region import ACCOUNT, Params, Region, Result, Template, types

_ID = re.compile(r"i-(?:[0-9a-f]{8}|[0-9a-f]{17})\Z")

# All subnets of a region are in one network.
VPC = "vpc-00000000000000001"
T = TypeVar("T")
Fields = Mapping[str, Callable[[T], str | None]]


def describe_instances(region: Region, params: Params) -> Result:
    now_ms = region.clock()
    ids = params.get("InstanceIds")
    if ids and params.get("MaxResults"):
        text = "The parameter instancesSet cannot be used with the parameter maxResults"
        raise Ec2Error("InvalidParameterCombination", text)
    visible = list(region.visible_machines())
    if ids:
        _check_ids(region, ids)
        visible = [machine for machine in visible if machine.id in ids]
    fields: Fields[Machine] = {
        "instance-id": lambda item: item.id,
        "instance-state-name": lambda item: item.state(now_ms),
        "instance-lifecycle": lambda item: "spot" if item.is_spot else None,
        "instance-type": lambda item: item.instance_type,
        "client-token": lambda item: item.token,
        "availability-zone": lambda item: item.zone,
        "subnet-id": lambda item: item.subnet,
        "image-id": lambda item: item.image,
    }
    matching = _apply_filters(visible, params, fields, lambda item: item.tags)
    page, more = _page(matching, params, region)
    return {
        "Reservations": [
            {
                "ReservationId": "r-" + machine.id[2:],
                "OwnerId": ACCOUNT,
                "Instances": [machine.description(now_ms)],
            }
            for machine in page
        ],
        **more,
    }


def get_console_output(region: Region, params: Params) -> Result:
    """Return the console output of a machine, also after its end. Refuse `Latest` for types without
    Nitro.
    """
    name = params["InstanceId"]
    _check_ids(region, [name])
    machine = region.machines[name]
    if params.get("Latest") and types()[machine.instance_type]["Hypervisor"] != "nitro":
        text = "This instance type does not support retrieving the latest console output."
        raise Ec2Error("UnsupportedOperation", text)
    written = base64.b64encode(machine.console.encode()).decode()
    return {"InstanceId": name, "Timestamp": moment(region.clock()), "Output": written}


def terminate_instances(region: Region, params: Params) -> Result:
    ids = list(dict.fromkeys(params["InstanceIds"]))
    _check_ids(region, ids)
    now_ms, changes = region.clock(), []
    machines = [region.machines[name] for name in ids]
    kept = {machine.zone: machine.id for machine in machines if machine.protected}
    # A protected machine protects its zone: the machines of the zone are kept, and the call fails
    # for all.
    for machine in machines:
        if machine.zone in kept:
            continue
        before = machine.state(now_ms)
        code = "Client.UserInitiatedShutdown"
        machine.end(now_ms, code, f"{code}: User initiated shutdown")
        after = shown_state(machine.state(now_ms))
        changes.append(
            {"InstanceId": machine.id, "PreviousState": shown_state(before), "CurrentState": after}
        )
    if kept:
        text = f"The instance '{min(kept.values())}' may not be terminated. Modify its "
        text += "'disableApiTermination' instance attribute and try again."
        raise Ec2Error("OperationNotPermitted", text)
    return {"TerminatingInstances": changes}


def describe_spot_instance_requests(region: Region, params: Params) -> Result:
    now_ms = region.clock()
    fields: Fields[Machine] = {
        "spot-instance-request-id": lambda item: item.spot_request,
        "instance-id": lambda item: item.id,
        "state": lambda item: "active" if item.is_billed(now_ms) else "closed",
        "status-code": lambda item: _spot_status(item, now_ms),
    }
    visible = [machine for machine in region.visible_machines() if machine.is_spot]
    # Tags of an instance do not tag the instance's spot request.
    page, more = _page(_apply_filters(visible, params, fields, lambda item: {}), params, region)
    return {
        "SpotInstanceRequests": [
            {
                "SpotInstanceRequestId": item.spot_request,
                "InstanceId": item.id,
                "State": "active" if item.is_billed(now_ms) else "closed",
                "Status": {
                    "Code": _spot_status(item, now_ms),
                    "UpdateTime": moment(item.noticed_ms or item.launched_ms),
                },
            }
            for item in page
        ],
        **more,
    }


def _spot_status(machine: Machine, now_ms: int) -> str:
    if not machine.is_billed(now_ms):
        taken = machine.notice_ms is not None
        return "instance-terminated-no-capacity" if taken else "instance-terminated-by-user"
    return "fulfilled" if machine.noticed_ms is None else "marked-for-termination"


def describe_launch_templates(region: Region, params: Params) -> Result:
    names, ids = params.get("LaunchTemplateNames"), params.get("LaunchTemplateIds")
    visible = [
        template
        for template in region.templates.values()
        if (not names or template.name in names) and (not ids or template.id in ids)
    ]
    if names and len(visible) < len(names):
        code = "InvalidLaunchTemplateName.NotFoundException"
        raise Ec2Error(code, "At least one of the launch templates does not exist.")
    fields: Fields[Template] = {"launch-template-name": lambda template: template.name}
    page, more = _page(
        _apply_filters(visible, params, fields, lambda template: template.tags), params, region
    )
    return {"LaunchTemplates": [shown_template(template) for template in page], **more}


def describe_subnets(region: Region, params: Params) -> Result:
    for name in params.get("SubnetIds") or []:
        if name not in region.subnets:
            text = f"The subnet ID '{name}' does not exist"
            raise Ec2Error("InvalidSubnetID.NotFound", text)
    names = params.get("SubnetIds") or list(region.subnets)
    fields: Fields[str] = {
        "default-for-az": lambda item: "true",
        "state": lambda item: "available",
        "subnet-id": lambda word: word,
        "availability-zone": lambda word: region.subnets[word],
    }
    page, more = _page(_apply_filters(names, params, fields, lambda item: {}), params, region)
    subnets = [
        {
            "SubnetId": item,
            "AvailabilityZone": region.subnets[item],
            "State": "available",
            "VpcId": VPC,
        }
        for item in page
    ]
    return {"Subnets": subnets, **more}


def describe_capacity_reservations(region: Region, params: Params) -> Result:
    names = params.get("CapacityReservationIds") or list(region.reservations)
    for name in names:
        if name not in region.reservations:
            code = "InvalidCapacityReservationId.NotFound"
            raise Ec2Error(code, f"The capacity reservation ID '{name}' was not found.")
    reservations = [{"CapacityReservationId": item, **region.reservations[item]} for item in names]
    return {"CapacityReservations": reservations}


def describe_images(region: Region, params: Params) -> Result:
    for name in params.get("ImageIds") or []:
        if not name.startswith("ami-"):
            raise Ec2Error("InvalidAMIID.Malformed", f'Invalid id: "{name}" (expecting "ami-...")')
        hidden = region.refused_images if region.allowed_images == "enabled" else ()
        if name not in region.images or name in hidden:
            raise Ec2Error("InvalidAMIID.NotFound", f"The image id '[{name}]' does not exist")
    names = params.get("ImageIds") or list(region.images)
    is_audited = region.allowed_images != "disabled"
    images = [
        {
            "ImageId": item,
            "RootDeviceName": region.images[item],
            "State": "available",
            "Architecture": "x86_64",
            **({"ImageAllowed": item not in region.refused_images} if is_audited else {}),
        }
        for item in names
    ]
    return {"Images": images}


def describe_spot_price_history(region: Region, params: Params) -> Result:
    """Return the prices of now: no history is stored."""
    wanted = params.get("InstanceTypes") or sorted(types())
    pools = [(kind, zone) for kind in wanted for zone in region.zones]
    sold = [(kind, zone) for kind, zone in pools if (kind, zone) not in region.not_offered]
    page, more = _page(sold, params, region)
    return {
        "SpotPriceHistory": [
            {
                "InstanceType": kind,
                "AvailabilityZone": zone,
                "ProductDescription": "Linux/UNIX",
                "SpotPrice": f"{region.spot_price(kind, zone):.6f}",
                "Timestamp": moment(region.clock()),
            }
            for kind, zone in page
        ],
        **more,
    }


def describe_instance_types(region: Region, params: Params) -> Result:
    wanted = params.get("InstanceTypes") or sorted(types())
    for name in wanted:
        if name not in types():
            text = f"The following supplied instance types do not exist: [{name}]"
            raise Ec2Error("InvalidInstanceType", text)
    fields: Fields[str] = {"instance-type": lambda word: word}
    page, more = _page(_apply_filters(wanted, params, fields, lambda item: {}), params, region)
    return {"InstanceTypes": [types()[item] for item in page], **more}


def describe_instance_type_offerings(region: Region, params: Params) -> Result:
    by_zone = params.get("LocationType") == "availability-zone"
    places = region.zones if by_zone else (region.name,)
    pools = [(kind, place) for kind in sorted(types()) for place in places]
    sold = [pool for pool in pools if pool not in region.not_offered]
    fields: Fields[tuple[str, str]] = {
        "instance-type": lambda item: item[0],
        "location": lambda item: item[1],
    }
    page, more = _page(_apply_filters(sold, params, fields, lambda item: {}), params, region)
    kind_of_place = "availability-zone" if by_zone else "region"
    offerings = [
        {"InstanceType": kind, "LocationType": kind_of_place, "Location": place}
        for kind, place in page
    ]
    return {"InstanceTypeOfferings": offerings, **more}


def _check_ids(region: Region, ids: Sequence[str]) -> None:
    for name in ids:
        if not _ID.match(name):
            raise Ec2Error("InvalidInstanceID.Malformed", f'Invalid id: "{name}"')
    visible = {machine.id for machine in region.visible_machines()}
    unknown = [name for name in ids if name not in visible]
    if unknown:
        many = len(unknown) > 1
        text = f"The instance ID{'s' * many} '{', '.join(unknown)}' do{'es' * (not many)} not exist"
        raise Ec2Error("InvalidInstanceID.NotFound", text)


def _apply_filters(
    items: Sequence[T],
    params: Params,
    fields: Fields[T],
    tags: Callable[[T], Mapping[str, str]],
) -> list[T]:
    matching = list(items)
    for given in params.get("Filters") or []:
        name, values = given["Name"], given["Values"]
        if not (name in fields or name == "tag-key" or name.startswith("tag:")):
            raise Ec2Error("InvalidParameterValue", f"The filter '{name}' is invalid")
        matching = [
            item for item in matching if _matches(_values(item, name, fields, tags), values)
        ]
    return matching


def _values(
    item: T, name: str, fields: Fields[T], tags: Callable[[T], Mapping[str, str]]
) -> list[str]:
    if name == "tag-key":
        return list(tags(item))
    value = tags(item).get(name[4:]) if name.startswith("tag:") else fields[name](item)
    return [] if value is None else [value]


def _matches(values: Sequence[str], patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(value, pattern) for value in values for pattern in patterns)


def _page(items: Sequence[T], params: Params, region: Region) -> tuple[Sequence[T], dict[str, Any]]:
    first = int(params.get("NextToken") or 0)
    wanted = int(params.get("MaxResults") or region.page_size_max)
    last = first + min(region.page_size_max, wanted)
    return items[first:last], ({"NextToken": str(last)} if last < len(items) else {})
