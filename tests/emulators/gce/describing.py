"""The filtered and paged lists of the simulated Compute Engine, and its other descriptions."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tests.emulators.gce.catalog import describe_accelerators, describe_types
from tests.emulators.gce.machine import GceError, Machine
from tests.emulators.gce.project import Project, Result

_TERM = re.compile(r'\(\s*([\w.-]+)\s*(=|!=)\s*"?([^")]*)"?\s*\)')
_FIELDS = re.compile(r"instances\(([^)]*)\)")

Query = Mapping[str, str]


def list_instances(project: Project, query: Query) -> Result:
    now_ms = project.clock()
    reachable = [
        machine for machine in project.visible_machines() if machine.zone not in project.unreachable
    ]
    descriptions = [machine.description(now_ms, project.url) for machine in reachable]
    fields = _FIELDS.search(query.get("fields", ""))
    matching = _page(_matching(descriptions, query), query, project)
    answer = _aggregate(project, "instances", matching, lambda item: _scope(item["zone"]))
    if fields is not None:
        names = set(fields[1].split(","))
        for place in answer["items"].values():
            for item in place.get("instances", ()):
                for key in item.keys() - names:
                    del item[key]
    return answer


def list_operations(project: Project, query: Query) -> Result:
    operations = list(project.operations)
    if query.get("orderBy") == "creationTimestamp desc":
        operations.reverse()
    descriptions = [project.shown_operation(operation) for operation in operations]
    matching = _page(_matching(descriptions, query), query, project)
    return _aggregate(
        project, "operations", matching, lambda item: _scope(item.get("zone") or item["region"])
    )


def list_machine_types(project: Project, query: Query, zone: str = "") -> Result:
    """Return the machine types of a zone, or of all zones."""
    zones = [zone] if zone else [name for some in project.zones.values() for name in some]
    descriptions = describe_types(zones, project.url, project.not_offered)
    page, token = _page(_matching(descriptions, query), query, project)
    if not zone:
        return _aggregate(project, "machineTypes", (page, token), lambda item: _scope(item["zone"]))
    return {"items": page, **({"nextPageToken": token} if token else {})}


def list_accelerator_types(project: Project, query: Query) -> Result:
    zones = [name for some in project.zones.values() for name in some]
    matching = _page(_matching(describe_accelerators(zones, project.url), query), query, project)
    return _aggregate(project, "acceleratorTypes", matching, lambda item: _scope(item["zone"]))


def get_region(project: Project, region: str) -> Result:
    if region not in project.zones:
        raise _unknown(project, f"regions/{region}")
    zones = [f"{project.url}/zones/{zone}" for zone in project.zones[region]]
    return {"kind": "compute#region", "name": region, "zones": zones}


def get_operation(project: Project, place: str, name: str) -> Result:
    for operation in project.operations:
        if (operation.place, operation.name) == (place, name):
            return project.shown_operation(operation)
    raise _unknown(project, f"{place}/operations/{name}")


def get_instance(project: Project, zone: str, name: str) -> Result:
    return visible_machine(project, zone, name).description(project.clock(), project.url)


def delete_instance(project: Project, zone: str, name: str) -> Result:
    machine = visible_machine(project, zone, name)
    if machine.protected:
        text = f"Invalid resource usage: 'Resource cannot be deleted if it is protected: {name}'."
        raise GceError(400, "invalidUsage", text)
    return project.shown_operation(project.delete(machine))


def get_serial_output(project: Project, zone: str, name: str, query: Query) -> Result:
    written = visible_machine(project, zone, name).console.encode()
    start = int(query.get("start", 0))
    start = max(0, len(written) + start) if start < 0 else start
    contents = written[start:].decode("utf-8", "replace")
    return {"kind": "compute#serialPortOutput", "contents": contents, "start": str(start)}


def visible_machine(project: Project, zone: str, name: str) -> Machine:
    """Return a machine that calls know of. Raises GceError."""
    for machine in project.visible_machines():
        if (machine.zone, machine.name) == (zone, name):
            return machine
    raise _unknown(project, f"zones/{zone}/instances/{name}")


def _unknown(project: Project, path: str) -> GceError:
    text = f"The resource 'projects/{project.name}/{path}' was not found"
    return GceError(404, "notFound", text)


def _scope(url: str) -> str:
    return "/".join(url.split("/")[-2:])


def _aggregate(
    project: Project,
    kind: str,
    items_and_token: tuple[list[Result], str],
    scope: Callable[[Result], str],
) -> Result:
    """Return a page of items by place. Empty zones and unreachable zones have a warning."""
    items: dict[str, Any] = {
        f"zones/{zone}": {"warning": {"code": "NO_RESULTS_ON_PAGE"}}
        for zones in project.zones.values()
        for zone in zones
    }
    page, token = items_and_token
    for item in page:
        place = items.setdefault(scope(item), {})
        place.pop("warning", None)
        place.setdefault(kind, []).append(item)
    for zone in project.unreachable:
        items[f"zones/{zone}"] = {"warning": {"code": "UNREACHABLE"}}
    return {"items": items, **({"nextPageToken": token} if token else {})}


def _matching(items: Iterable[Result], query: Query) -> list[Result]:
    text = query.get("filter", "")
    either = [_TERM.findall(part) for part in text.split(" OR ")] if text else [[]]
    rest = _TERM.sub("", text).replace("OR", "").replace("AND", "").strip()
    if rest:
        raise GceError(400, "invalid", f"Invalid value for field 'filter': '{text}'.")
    return [item for item in items if any(_matches(item, terms) for terms in either)]


def _matches(item: Result, terms: Sequence[tuple[str, str, str]]) -> bool:
    return all((_value(item, key) == value) == (sign == "=") for key, sign, value in terms)


def _value(item: Result, key: str) -> str:
    if key.startswith("labels."):
        return str(item.get("labels", {}).get(key.removeprefix("labels."), ""))
    return str(item.get(key, ""))


def _page(items: list[Result], query: Query, project: Project) -> tuple[list[Result], str]:
    first = int(query.get("pageToken") or 0)
    wanted = int(query.get("maxResults") or project.page_size_max)
    last = first + min(project.page_size_max, wanted)
    return items[first:last], str(last) if last < len(items) else ""
