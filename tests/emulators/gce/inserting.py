"""Bulk inserts of the simulated Compute Engine."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tests.emulators.gce.catalog import find_type
from tests.emulators.gce.machine import GceError, Machine
from tests.emulators.gce.project import IMAGE_FAMILIES, Operation, Project, Result

METADATA_BYTES_MAX = 262_144
# The lowest documented limit of a bulk insert.
INSTANCES_MAX = 1_000
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?\Z")
_LABEL_KEY = re.compile(r"[a-z][-_a-z0-9]{0,62}\Z")
_LABEL_VALUE = re.compile(r"[-_a-z0-9]{0,63}\Z")
_N1_COUNTS = {
    "nvidia-tesla-t4": (1, 2, 4),
    "nvidia-tesla-v100": (1, 2, 4, 8),
    "nvidia-tesla-p100": (1, 2, 4),
    "nvidia-tesla-p4": (1, 2, 4),
}


class Order(NamedTuple):
    """A bulk insert: names of machines, the minimal number `least`, and candidate zones."""

    names: Sequence[str]
    least: int
    zones: Sequence[str]
    properties: Mapping[str, Any]
    shape: str

    @property
    def machine_type(self) -> str:
        return str(self.properties["machineType"])

    @property
    def market(self) -> str:
        spot = self.properties.get("scheduling", {}).get("provisioningModel") == "SPOT"
        return "spot" if spot else "on-demand"

    @property
    def gpus(self) -> int:
        attached = self.properties.get("guestAccelerators") or ()
        more = sum(int(item["acceleratorCount"]) for item in attached)
        facts = find_type(self.machine_type)
        return more + (facts.gpus if facts else 0)


def bulk_insert(project: Project, place: str, body: Mapping[str, Any], request_id: str) -> Result:
    if project.bulk_refused:
        # The caller's condition on the names of instances does not hold for the place of the call.
        text = f"Required 'compute.instances.create' permission for 'projects/{project.name}'"
        raise GceError(403, "forbidden", text)
    former = project.requests.get((place, request_id)) if request_id else None
    if former is not None:
        return project.shown_operation(former)
    now_ms = project.clock()
    running = [
        item
        for item in project.operations
        if item.kind == "bulkInsert" and item.status(now_ms) != "DONE"
    ]
    if len(running) >= project.bulk_operations_max:
        raise GceError(403, "rateLimitExceeded", "Too many bulk operations are running.")
    order = _order(project, place, body)
    check_properties(order)
    machines, failures = allocate(project, order)
    if len(machines) < order.least and not project.late:
        for machine in machines:
            del project.machines[machine.name]
        raise upfront_error(failures)
    operation = _bulk_operation(project, place, order, machines, failures)
    operation.request_id = request_id
    if request_id:
        project.requests[place, request_id] = operation
    return project.shown_operation(operation)


def _order(project: Project, place: str, body: Mapping[str, Any]) -> Order:
    names = list(body.get("perInstanceProperties", {}))
    count = int(body["count"])
    if count > INSTANCES_MAX:
        raise _invalid("count", f"must be less than or equal to {INSTANCES_MAX}")
    if len(names) != count or not all(map(_NAME.match, names)):
        raise _invalid("perInstanceProperties", "its keys must be the names of all instances")
    kind, _, where = place.partition("s/")
    if kind == "zone":
        if body.get("locationPolicy"):
            raise _invalid("locationPolicy", "is for regional requests")
        zones: Sequence[str] = [where]
        if not any(where in some for some in project.zones.values()):
            raise _not_found(f"projects/{project.name}/zones/{where}")
    elif where in project.zones:
        zones = project.zones[where]
    else:
        raise _not_found(f"projects/{project.name}/regions/{where}")
    properties = body["instanceProperties"]
    check_type(project, properties, zones)
    for name in names:
        check_name(project, name, zones)
    # Compute Engine's default is a single zone.
    shape = (body.get("locationPolicy") or {}).get("targetShape", "ANY_SINGLE_ZONE")
    return Order(names, int(body.get("minCount", count)), zones, properties, shape)


def check_name(project: Project, name: str, zones: Sequence[str]) -> None:
    """Raise GceError if a machine of one of the zones has the name."""
    if name in project.machines and project.machines[name].zone in zones:
        text = f"The resource 'projects/{project.name}/zones/{zones[0]}/instances/{name}'"
        raise GceError(409, "alreadyExists", f"{text} already exists")


def check_type(project: Project, properties: Mapping[str, Any], zones: Sequence[str]) -> None:
    kind = properties["machineType"]
    if "/" in kind:
        raise GceError(503, "backendError", "Internal error. Please try again.")
    sold = [zone for zone in zones if (kind, zone) not in project.not_offered]
    if find_type(kind) is None or not sold:
        text = f"Machine type with name '{kind}' does not exist in zone '{zones[0]}'."
        raise _invalid("instanceProperties.machineType", text)


def check_properties(order: Order) -> None:
    properties = order.properties
    for key, value in properties.get("labels", {}).items():
        if not isinstance(value, str):
            raise _invalid("instanceProperties.labels", f"{value} (TYPE_STRING)")
        if not _LABEL_KEY.match(key) or not _LABEL_VALUE.match(value):
            raise _invalid("instanceProperties.labels", f"'{key}: {value}' is no label")
    if len(properties.get("labels", {})) > 64:
        raise _invalid("instanceProperties.labels", "there are more than 64")
    for item in properties.get("metadata", {}).get("items", ()):
        if len(item["value"].encode()) > METADATA_BYTES_MAX:
            raise _invalid("instanceProperties.metadata.items", "a value is too large")
    boot = [disk for disk in properties.get("disks", ()) if disk.get("boot")]
    if len(boot) != 1:
        raise _invalid("instanceProperties.disks", "there must be one boot disk")
    image = boot[0]["initializeParams"]["sourceImage"]
    if image not in IMAGE_FAMILIES:
        raise _not_found(image)
    _check_accelerators(order)


def _check_accelerators(order: Order) -> None:
    for attached in order.properties.get("guestAccelerators") or ():
        name, count = attached["acceleratorType"], int(attached["acceleratorCount"])
        takes = order.machine_type.startswith(("n1-", "custom-"))
        if not takes or count not in _N1_COUNTS.get(name, ()):
            text = f"{count} of {name} cannot be attached to {order.machine_type}"
            raise _invalid("instanceProperties.guestAccelerators", text)
    scheduling = order.properties.get("scheduling", {})
    if order.gpus and scheduling.get("onHostMaintenance", "MIGRATE") != "TERMINATE":
        text = "Instances with guest accelerators do not support live migration."
        raise _invalid("instanceProperties.scheduling", text)
    is_spot = order.market == "spot"
    if is_spot and scheduling.get("automaticRestart", True):
        raise _invalid("instanceProperties.scheduling", "Spot VMs cannot be restarted.")
    if "instanceTerminationAction" in scheduling and not is_spot:
        raise _invalid("instanceProperties.scheduling", "a termination action is for Spot VMs")


def allocate(project: Project, order: Order) -> tuple[list[Machine], list[tuple[str, str, str]]]:
    """Create machines while room is left. Return the machines, and (name, zone, code) of each
    failure.
    """
    zones = [zone for zone in order.zones if (order.machine_type, zone) not in project.not_offered]
    if order.shape == "ANY_SINGLE_ZONE":
        zones = [max(zones, key=lambda zone: min(len(order.names), _room(project, order, zone)))]
    machines, failures = list[Machine](), list[tuple[str, str, str]]()
    for name in order.names:
        if _is_over_quota(project, order):
            failures.append((name, zones[0], "QUOTA_EXCEEDED"))
            continue
        zone = next((zone for zone in zones if _room(project, order, zone) > 0), None)
        if zone is None:
            failures.append((name, zones[0], "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"))
            continue
        machine = _new_machine(project, order, name, zone)
        project.machines[name] = machine
        machines.append(machine)
    return machines, failures


def _room(project: Project, order: Order, zone: str) -> int:
    key = (order.machine_type, zone, order.market)
    used = sum(
        (
            billed_machine.machine_type,
            billed_machine.zone,
            "spot" if billed_machine.is_spot else "on-demand",
        )
        == key
        for billed_machine in project.billed_machines()
    )
    return project.capacity.get(key, 1000) - used


def _is_over_quota(project: Project, order: Order) -> bool:
    used = sum(
        Order((), 0, (), billed_machine.properties, "").gpus
        for billed_machine in project.billed_machines()
        if billed_machine.is_spot == (order.market == "spot")
    )
    quota = project.quota.get(order.market)
    return quota is not None and used + order.gpus > quota


def _new_machine(project: Project, order: Order, name: str, zone: str) -> Machine:
    now_ms = project.clock()
    boots = project.sleepers <= 0
    project.sleepers -= not boots
    return Machine(
        name=name,
        id=str(10**18 + project.number()),
        zone=zone,
        properties=order.properties,
        inserted_ms=now_ms,
        visible_ms=now_ms + project.visible_ms,
        staging_ms=now_ms + project.staging_ms,
        running_ms=now_ms + project.running_ms,
        ending_ms=project.ending_ms,
        boots=boots,
    )


def _bulk_operation(
    project: Project,
    place: str,
    order: Order,
    machines: Sequence[Machine],
    failures: Sequence[tuple[str, str, str]],
) -> Operation:
    now_ms = project.clock()
    done_ms = now_ms + project.operation_ms
    group = f"group-{project.number()}"
    operation = project.add_operation("bulkInsert", place, "", now_ms, done_ms)
    operation.group = group
    fails = len(machines) < order.least
    for name, zone in [(item.name, item.zone) for item in machines] + [
        failure[:2] for failure in failures
    ]:
        target = f"{project.url}/zones/{zone}/instances/{name}"
        insert = project.add_operation("insert", f"zones/{zone}", target, now_ms, done_ms)
        insert.group = group
        insert.target_id = next((item.id for item in machines if item.name == name), "")
        code = next((failure[2] for failure in failures if failure[0] == name), "")
        insert.errors = [operation_error(code, zone, order)] if code else []
        counts = operation.locations.setdefault(
            f"zones/{zone}",
            {"status": "DONE", "targetVmCount": 0, "createdVmCount": 0, "failedToCreateVmCount": 0},
        )
        counts["targetVmCount"] += 1
        counts["failedToCreateVmCount" if code else "createdVmCount"] += 1
        if fails and not code:
            counts["deletedVmCount"] = counts.get("deletedVmCount", 0) + 1
    if fails:
        text = f"Requested minimum count of {order.least} VMs could not be created."
        operation.errors = [{"code": "VM_MIN_COUNT_NOT_REACHED", "message": text}]
        for machine in machines:
            machine.boots = False
            machine.end(done_ms, project.ending_ms, delete=True)
    return operation


def operation_error(code: str, zone: str, order: Order) -> dict[str, str]:
    return {"code": code, "message": _failure_text(code, zone, order)}


def _failure_text(code: str, zone: str, order: Order) -> str:
    if code == "QUOTA_EXCEEDED":
        return "Quota 'NVIDIA_GPUS' exceeded.  Limit: 0.0 in region us-central1."
    return (
        f"The zone '{zone}' does not have enough resources available to fulfill the request."
        f"  Try a different zone, or try again later. ({order.machine_type})"
    )


def upfront_error(failures: Sequence[tuple[str, str, str]]) -> GceError:
    _, zone, code = failures[0]
    if code == "QUOTA_EXCEEDED":
        text = "Quota 'NVIDIA_GPUS' exceeded.  Limit: 0.0 in region us-central1."
        return GceError(403, "quotaExceeded", text)
    text = f"There is not enough capacity for the request, as in zone {zone}."
    return GceError(503, "insufficientCapacity", text)


def _invalid(place: str, message: str) -> GceError:
    return GceError(400, "invalid", f"Invalid value for field 'resource.{place}': {message}")


def _not_found(resource: str) -> GceError:
    return GceError(404, "notFound", f"The resource '{resource}' was not found")
