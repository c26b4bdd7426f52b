"""Operations of Compute Engine: what became of a bulk insert, and why instances ended.

A bulk insert is an operation, and each of its instances is one of its group. They are kept for a
while after their end, and an instance that is deleted is not: a launch that is repeated after the
end of its instances learns their names from them.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from control_plane.fleet.records import ErrorKind
from provisioner.clouds.gcp.errors import MIN_COUNT_NOT_REACHED, operation_error
from provisioner.clouds.gcp.google_api import GoogleApi, JsonObject
from provisioner.clouds.provider import CloudError
from provisioner.model import EndReason

PAGE_SIZE = 500
BULK_INSERT = "bulkInsert"
PREEMPTED = "compute.instances.preempted"

_INSERT = "insert"
# Why instances end that nobody asked to end, by the type of the operation that says so.
_ENDS: Mapping[str, EndReason] = {
    PREEMPTED: EndReason("the spot instance was preempted", ErrorKind.BOOT, taken_back=True),
    "compute.instances.hostError": EndReason("its host failed"),
    "compute.instances.terminateOnHostMaintenance": EndReason("its host is maintained"),
    "compute.instances.guestTerminate": EndReason("it shut itself down"),
}


class LaunchedInstance(NamedTuple):
    """An instance that an operation made, or tried to make."""

    name: str
    zone: str


class BulkResult(NamedTuple):
    """The result of a bulk insert so far: every instance it named, and those that are there."""

    named: tuple[LaunchedInstance, ...]
    launched: tuple[LaunchedInstance, ...]
    is_over: bool
    errors: tuple[JsonObject, ...] = ()

    @property
    def error(self) -> CloudError:
        """Why nothing was launched."""
        return operation_error(self.errors)


def find_bulk_insert(api: GoogleApi, project: str, request_id: str) -> JsonObject | None:
    """Find the bulk insert that was made with a request's id, wherever it was."""
    wanted = f'(clientOperationId = "{request_id}") (operationType = "{BULK_INSERT}")'
    return next(iter(_read_operations(api, project, wanted)), None)


def read_bulk_result(api: GoogleApi, project: str, operation: JsonObject) -> BulkResult:
    """Read what became of a bulk insert by now, without waiting for anything."""
    if operation.get("status") != "DONE":
        operation = api.get(
            f"{project}/{operation_place(operation)}/operations/{operation['name']}"
        )
    group = operation.get("operationGroupId")
    wanted = f'(operationGroupId = "{group}") (operationType = "{_INSERT}")'
    inserts = _read_operations(api, project, wanted) if group else []
    made = [insert for insert in inserts if insert.get("status") == "DONE" and not _errors(insert)]
    failed = [error for insert in inserts for error in _errors(insert)]
    is_rolled_back = _is_rolled_back(operation)
    # An operation that is over may be seen before all of its instances' are.
    is_whole = is_rolled_back or len(made) >= _created_count(operation)
    return BulkResult(
        named=tuple(map(_target, inserts)),
        launched=() if is_rolled_back else tuple(map(_target, made)),
        is_over=operation.get("status") == "DONE" and is_whole,
        errors=(*failed, *_errors(operation)),
    )


def read_ends(api: GoogleApi, project: str, names: Iterable[str]) -> dict[str, "EndOperation"]:
    """Read why instances end, of those of these names that the latest operations tell of."""
    types = " OR ".join(f'(operationType = "{kind}")' for kind in _ENDS)
    wanted = set(names)
    page = api.get(
        f"{project}/aggregated/operations",
        filter=types,
        orderBy="creationTimestamp desc",
        maxResults=PAGE_SIZE,
    )
    ends = {}
    for operation in sorted(_operations(page), key=lambda item: item.get("insertTime", "")):
        name = _target(operation).name
        if name in wanted:
            ends[name] = EndOperation(
                _ENDS[operation["operationType"]],
                operation["insertTime"],
                operation["operationType"] == PREEMPTED,
            )
    return ends


class EndOperation(NamedTuple):
    """Why an instance ends, since when (RFC 3339), and whether it was taken back."""

    end: EndReason
    time: str
    is_preemption: bool


def operation_place(operation: JsonObject) -> str:
    """The part of a path that says where an operation is."""
    kind = "zone" if "zone" in operation else "region"
    return f"{kind}s/{last_segment(operation[kind])}"


def last_segment(url: str) -> str:
    """The name at the end of a resource's URL."""
    return url.rpartition("/")[2]


def _read_operations(api: GoogleApi, project: str, wanted: str) -> list[JsonObject]:
    path = f"{project}/aggregated/operations"
    pages = api.read_pages(path, filter=wanted, maxResults=PAGE_SIZE)
    return [operation for page in pages for operation in _operations(page)]


def _operations(page: JsonObject) -> list[JsonObject]:
    return [
        operation
        for scope in page.get("items", {}).values()
        for operation in scope.get("operations", ())
    ]


def _target(operation: JsonObject) -> LaunchedInstance:
    zone = last_segment(operation.get("zone", ""))
    return LaunchedInstance(last_segment(operation.get("targetLink", "")), zone)


def _errors(operation: JsonObject) -> Sequence[Mapping[str, Any]]:
    error = operation.get("error") or {}
    errors: Sequence[Mapping[str, Any]] = error.get("errors", ())
    return errors


def _is_rolled_back(operation: JsonObject) -> bool:
    """Whether what a bulk insert made was deleted again, as too little of it was made."""
    if any(error.get("code") == MIN_COUNT_NOT_REACHED for error in _errors(operation)):
        return True
    return any(
        location_status.get("status") == "ROLLING_BACK" or location_status.get("deletedVmCount")
        for location_status in _location_statuses(operation)
    )


def _created_count(operation: JsonObject) -> int:
    return sum(
        int(location_status.get("createdVmCount", 0))
        for location_status in _location_statuses(operation)
    )


def _location_statuses(operation: JsonObject) -> Iterable[Mapping[str, Any]]:
    metadata = operation.get("instancesBulkInsertOperationMetadata") or {}
    statuses: Mapping[str, Mapping[str, Any]] = metadata.get("perLocationStatus") or {}
    return statuses.values()
