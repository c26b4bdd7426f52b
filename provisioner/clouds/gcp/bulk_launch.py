"""Launches by bulk inserts: a call and an operation for all instances of a request."""

from provisioner.clouds.gcp.errors import is_already_existing, is_creation_refused
from provisioner.clouds.gcp.google_api import JsonObject
from provisioner.clouds.gcp.launch_request import BulkRequest, is_named_by
from provisioner.clouds.gcp.operations import (
    BulkResult,
    LaunchedInstance,
    check_operation,
    find_bulk_insert,
    read_bulk_result,
)
from provisioner.clouds.gcp.pending_launch import PendingLaunch
from provisioner.clouds.provider import (
    BatchRefused,
    CloudError,
    ConfigurationError,
    LaunchUnderWay,
    NotAllowed,
    OutcomeUnknown,
    TokenReused,
)


def launch_in_bulk(launch: PendingLaunch, bulk: BulkRequest) -> tuple[LaunchedInstance, ...]:
    """Launch instances by a bulk insert, or read the result of an earlier bulk insert.

    An earlier bulk insert is searched first if the request id may be forgotten.

    Raises:
        BatchRefused: Google lets the caller create no instances by this call. No operation of the
            request exists, so nothing was launched.
        CloudError: as GceCloud.launch.
    """
    operation = _find_operation(launch, bulk) if launch.is_id_forgotten else None
    try:
        if operation is None:
            operation = check_operation(
                launch.api.post(bulk.path, bulk.body, requestId=bulk.request_id)
            )
        result = _read_result(launch, operation)
        _check_request(result, launch)
        if result.is_over and not result.launched:
            raise result.error
    except NotAllowed as error:
        if not is_creation_refused(error) or _find_operation(launch, bulk, launched=True):
            raise
        raise BatchRefused(str(error)) from None
    except ConfigurationError as error:
        if not is_already_existing(error):
            raise
        # Instance names are unique to the request, so an earlier attempt created the instances.
        raise OutcomeUnknown(str(error)) from None
    if not result.is_over:
        raise LaunchUnderWay(f"operation {operation['name']} makes {launch.text}")
    return result.launched


def _find_operation(
    launch: PendingLaunch, bulk: BulkRequest, *, launched: bool = False
) -> JsonObject | None:
    """Return the operation of an earlier bulk insert with the request's id.

    Return None without an operation. With `launched`, a failed operation does not count. Raises
    CloudError if the operations cannot be read.
    """
    found = find_bulk_insert(launch.api, launch.settings.project, bulk.request_id)
    has_failed = found is not None and found.get("status") == "DONE" and "error" in found
    return None if launched and has_failed else found


def _read_result(launch: PendingLaunch, operation: JsonObject) -> BulkResult:
    """Read the result of a bulk insert so far from Compute Engine, without waiting for the end.

    Failed operations raise no error: the result has their errors. Raises OutcomeUnknown for any
    error of the requests, because the launch has been requested already.
    """
    try:
        return read_bulk_result(launch.api, launch.settings.project, operation)
    except CloudError as error:
        raise OutcomeUnknown(f"operation {operation['name']} cannot be read: {error}") from None


def _check_request(result: BulkResult, launch: PendingLaunch) -> None:
    """Raise TokenReused if an operation of a bulk insert names an instance of another request.

    Another launch has then already used the request's token. Google is not called.
    """
    for instance in result.named:
        if not is_named_by(instance.name, launch.request):
            raise TokenReused(f"the launch token was already used, for {instance.name}")
