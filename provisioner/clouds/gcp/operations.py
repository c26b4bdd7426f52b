"""Operations of Compute Engine: the results of bulk inserts, and the reasons for instances' ends.

A bulk insert is an operation, and the creation of each instance is another operation of its group.
Compute Engine keeps operations for a while, longer than deleted instances. A launch that is
repeated after the end of its instances therefore reads their names from the operations.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from control_plane.fleet.records import ErrorKind
from provisioner.clouds.gcp.errors import MIN_COUNT_NOT_REACHED, operation_error
from provisioner.clouds.gcp.google_api import GoogleApi, JsonObject
from provisioner.clouds.provider import CloudError, OutcomeUnknown
from provisioner.model import EndReason

PAGE_SIZE = 500
IDS_IN_FILTER_MAX = 20
BULK_INSERT = "bulkInsert"
PREEMPTED = "compute.instances.preempted"

_INSERT = "insert"
# The reasons for ends that the provisioner did not request, by the type of the operation.
_ENDS: Mapping[str, EndReason] = {
    PREEMPTED: EndReason("the spot instance was preempted", ErrorKind.BOOT, taken_back=True),
    "compute.instances.hostError": EndReason("its host failed"),
    "compute.instances.terminateOnHostMaintenance": EndReason("its host is maintained"),
    "compute.instances.guestTerminate": EndReason("it shut itself down"),
}


class LaunchedInstance(NamedTuple):
    """An instance that an operation created or failed to create."""

    name: str
    zone: str
    uid: str = ""
    """Google's number of the instance; "" if the operation does not have the number."""


class BulkResult(NamedTuple):
    """The result of a bulk insert so far."""

    named: tuple[LaunchedInstance, ...]
    """Every instance that the bulk insert has begun to create."""
    launched: tuple[LaunchedInstance, ...]
    """The created instances; empty if they were deleted again because they were too few."""
    is_over: bool
    """Whether the result is final."""
    errors: tuple[JsonObject, ...] = ()
    """The errors of the operations."""

    @property
    def error(self) -> CloudError:
        """Return the error to report if nothing was launched: the best to retry of `errors`.

        Of `errors`, the first in the order of the classes in errors._BEST_TO_RETRY_FIRST counts.
        An unlisted code or a failure within Google is a plain CloudError, never an OutcomeUnknown.
        Return NoCapacity without errors. Nothing is raised.
        """
        return operation_error(self.errors)


def find_bulk_insert(api: GoogleApi, project: str, request_id: str) -> JsonObject | None:
    """Find the operation of the bulk insert with a request id, in any zone or region.

    Return None if no operation with this id is listed: the request did not arrive, or Compute
    Engine has forgotten it. Raises CloudError if the list cannot be read.
    """
    wanted = f'(clientOperationId = "{request_id}") (operationType = "{BULK_INSERT}")'
    return next(iter(_read_operations(api, project, wanted)), None)


def find_inserts(api: GoogleApi, project: str, ids: Sequence[str]) -> list[JsonObject]:
    """Return the operations of single inserts with the given request ids, in any zone.

    Ids without a listed operation are left out: the request did not arrive, or Compute Engine has
    forgotten it. IDS_IN_FILTER_MAX ids are read by a request. Raises CloudError if a list cannot be
    read.
    """
    found = []
    for first in range(0, len(ids), IDS_IN_FILTER_MAX):
        batch = ids[first : first + IDS_IN_FILTER_MAX]
        wanted = " OR ".join(f'(clientOperationId = "{identifier}")' for identifier in batch)
        found += _read_operations(api, project, wanted)
    return found


def check_operation(answer: JsonObject) -> JsonObject:
    """Return the response to an insert unchanged.

    Raises OutcomeUnknown if the response lacks the fields of an operation: a name, a status, and a
    zone or region. Whether the operation failed does not matter.
    """
    if not {"name", "status"} <= answer.keys() or not {"zone", "region"} & answer.keys():
        raise OutcomeUnknown("Compute Engine responded with no operation")
    return answer


def read_bulk_result(api: GoogleApi, project: str, operation: JsonObject) -> BulkResult:
    """Read the result of a bulk insert so far, without waiting for the end.

    The result is over if the bulk insert is done and the operations of all created instances are
    listed, or the instances were deleted again as too few. Raises CloudError if the operations
    cannot be read. Failed operations raise no error: the result has their errors.

    Args:
        api: the API of Compute Engine.
        project: the id of the project.
        operation: the bulk insert, as found or created. Read again unless its status is DONE.
    """
    if operation.get("status") != "DONE":
        operation = api.get(
            f"{project}/{operation_place(operation)}/operations/{operation['name']}"
        )
    group = operation.get("operationGroupId")
    wanted = f'(operationGroupId = "{group}") (operationType = "{_INSERT}")'
    inserts = _read_operations(api, project, wanted) if group else []
    made = [insert for insert in inserts if is_successful(insert)]
    failed = [error for insert in inserts for error in errors_of(insert)]
    is_rolled_back = _is_rolled_back(operation)
    # The list may still lack operations of instances after the bulk insert is over.
    is_complete = is_rolled_back or len(made) >= _created_count(operation)
    return BulkResult(
        named=tuple(map(target_of, inserts)),
        launched=() if is_rolled_back else tuple(map(target_of, made)),
        is_over=operation.get("status") == "DONE" and is_complete,
        errors=(*failed, *errors_of(operation)),
    )


def read_ends(api: GoogleApi, project: str, names: Iterable[str]) -> dict[str, "EndOperation"]:
    """Read the latest operation that ended each named instance.

    Only the latest PAGE_SIZE operations of the types in _ENDS are read, in one request: ends that
    the provisioner did not request. The result has no entry for an instance without an operation on
    this page, so it may be empty. The request is also sent without names. Raises CloudError.
    """
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
        name = target_of(operation).name
        if name in wanted:
            ends[name] = EndOperation(
                _ENDS[operation["operationType"]],
                operation["insertTime"],
                operation["operationType"] == PREEMPTED,
            )
    return ends


class EndOperation(NamedTuple):
    """The operation that ends an instance without a request of the provisioner."""

    end: EndReason
    time: str
    """The time at which the operation began, in the format of RFC 3339."""
    is_preemption: bool
    """Whether Compute Engine preempted the spot instance."""


def operation_place(operation: JsonObject) -> str:
    """Return the location in an operation's path: `zones/ZONE` or `regions/REGION`.

    Raises KeyError for an operation with neither.
    """
    kind = "zone" if "zone" in operation else "region"
    return f"{kind}s/{last_segment(operation[kind])}"


def last_segment(url: str) -> str:
    """Return the name at the end of a resource's URL; a text without "/" is returned unchanged."""
    return url.rpartition("/")[2]


def target_of(operation: JsonObject) -> LaunchedInstance:
    """Return the instance that an operation is about; fields that are missing are ""."""
    zone = last_segment(operation.get("zone", ""))
    uid = str(operation.get("targetId", ""))
    return LaunchedInstance(last_segment(operation.get("targetLink", "")), zone, uid)


def errors_of(operation: JsonObject) -> Sequence[Mapping[str, Any]]:
    """Return the errors of a failed operation; an empty sequence for any other operation."""
    error = operation.get("error") or {}
    errors: Sequence[Mapping[str, Any]] = error.get("errors", ())
    return errors


def is_successful(operation: JsonObject) -> bool:
    """Whether an operation is over and has no errors."""
    return operation.get("status") == "DONE" and not errors_of(operation)


def _read_operations(api: GoogleApi, project: str, wanted: str) -> list[JsonObject]:
    """Return all operations that match the filter `wanted`, in all zones and regions.

    All pages are read from Compute Engine. Empty without a match. Raises CloudError for a page that
    cannot be read.
    """
    path = f"{project}/aggregated/operations"
    pages = api.read_pages(path, filter=wanted, maxResults=PAGE_SIZE)
    return [operation for page in pages for operation in _operations(page)]


def _operations(page: JsonObject) -> list[JsonObject]:
    """Return the operations of a page, from all zones and regions; empty without operations."""
    return [
        operation
        for scope in page.get("items", {}).values()
        for operation in scope.get("operations", ())
    ]


def _is_rolled_back(operation: JsonObject) -> bool:
    """Whether Compute Engine deletes or has deleted the created instances, as too few.

    The operation's errors and statuses of zones decide; nothing is read from Compute Engine.
    """
    if any(error.get("code") == MIN_COUNT_NOT_REACHED for error in errors_of(operation)):
        return True
    return any(
        location_status.get("status") == "ROLLING_BACK" or location_status.get("deletedVmCount")
        for location_status in _location_statuses(operation)
    )


def _created_count(operation: JsonObject) -> int:
    """Return the number of instances that a bulk insert reports as created; 0 without a report."""
    return sum(
        int(location_status.get("createdVmCount", 0))
        for location_status in _location_statuses(operation)
    )


def _location_statuses(operation: JsonObject) -> Iterable[Mapping[str, Any]]:
    """Return a bulk insert's status of each zone; empty without statuses."""
    metadata = operation.get("instancesBulkInsertOperationMetadata") or {}
    statuses: Mapping[str, Mapping[str, Any]] = metadata.get("perLocationStatus") or {}
    return statuses.values()
