"""Single inserts of the simulated Compute Engine.

Types, disks and accelerators are paths in the zone, as Google's reference requires. Machines store
the properties of a bulk insert.
"""

from collections.abc import Mapping
from typing import Any

from tests.emulators.gce.inserting import (
    Order,
    allocate,
    check_name,
    check_properties,
    check_type,
    operation_error,
    upfront_error,
)
from tests.emulators.gce.machine import GceError
from tests.emulators.gce.project import Project, Result


def insert(project: Project, zone: str, body: Mapping[str, Any], request_id: str) -> Result:
    place = f"zones/{zone}"
    former = project.requests.get((place, request_id)) if request_id else None
    if former is not None:
        return project.shown_operation(former)
    if not any(zone in some for some in project.zones.values()):
        text = f"The resource 'projects/{project.name}/{place}' was not found"
        raise GceError(404, "notFound", text)
    name, properties = str(body["name"]), _bulk_properties(body, place)
    check_type(project, properties, [zone])
    check_name(project, name, [zone])
    order = Order([name], 1, [zone], properties, "ANY_SINGLE_ZONE")
    check_properties(order)
    machines, failures = allocate(project, order)
    if failures and not project.late:
        raise upfront_error(failures)
    now_ms = project.clock()
    target = f"{project.url}/{place}/instances/{name}"
    operation = project.add_operation(
        "insert", place, target, now_ms, now_ms + project.operation_ms
    )
    operation.request_id = request_id
    operation.target_id = machines[0].id if machines else ""
    operation.errors = [operation_error(code, at, order) for _, at, code in failures]
    if request_id:
        project.requests[place, request_id] = operation
    return project.shown_operation(operation)


def _bulk_properties(body: Mapping[str, Any], place: str) -> dict[str, Any]:
    properties = {key: value for key, value in body.items() if key != "name"}
    properties["machineType"] = _name(body["machineType"], f"{place}/machineTypes/")
    for disk in body["disks"]:
        _name(disk["initializeParams"]["diskType"], f"{place}/diskTypes/")
    if attached := body.get("guestAccelerators"):
        properties["guestAccelerators"] = [
            {
                **item,
                "acceleratorType": _name(item["acceleratorType"], f"{place}/acceleratorTypes/"),
            }
            for item in attached
        ]
    return properties


def _name(path: str, collection: str) -> str:
    """Return the name at the end of a path in a collection. Raises GceError for another text."""
    _, found, name = path.partition(collection)
    if not found:
        text = f"Invalid value for field '{collection}': '{path}'. The URL is malformed."
        raise GceError(400, "invalid", text)
    return name
