"""Launches by single inserts: a call and an operation for each instance.

A pool launches by single inserts while Google refuses bulk inserts (decision 0117). Compute Engine
chooses the zone of a bulk insert; here, each instance tries the zones of the region in an order
that depends on the launch's token.

No state is stored. The id of each insert depends on the token, the instance's number and the zone,
so the operations of a launch are found by their ids, also after a lost answer. An id is sent again
only while no operation has the id, and the instance's name is the same as before.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

from control_plane.gcp.zones import region_of
from provisioner.clouds.gcp.errors import (
    best_error,
    is_already_existing,
    is_caller_refused,
    is_gone,
    operation_error,
)
from provisioner.clouds.gcp.google_api import CONNECTIONS_MAX, JsonObject
from provisioner.clouds.gcp.insert_request import insert_body
from provisioner.clouds.gcp.launch_request import (
    instance_names,
    instance_properties,
    is_named_by,
    launch_zone,
    request_id,
)
from provisioner.clouds.gcp.operations import (
    LaunchedInstance,
    check_operation,
    errors_of,
    find_inserts,
    is_successful,
    last_segment,
    target_of,
)
from provisioner.clouds.gcp.pending_launch import PendingLaunch
from provisioner.clouds.provider import (
    CloudError,
    ConfigurationError,
    LaunchUnderWay,
    OutcomeUnknown,
    QuotaExceeded,
    TokenReused,
)

# A pass has seconds for a launch, and eight calls run at a time.
INSTANCES_MAX: Final = 50


@dataclass
class _Attempt:
    """The inserts of an instance."""

    name: str
    number: int
    inserts: dict[str, JsonObject] = field(default_factory=dict)
    """The operations by zone."""
    errors: list[CloudError] = field(default_factory=list)
    """The errors of all zones that refused the instance, in this call or in an operation."""
    is_unanswered: bool = False
    """Whether an insert of this call got no answer."""

    @property
    def instance(self) -> LaunchedInstance | None:
        """The created instance, if an insert has succeeded."""
        for insert in self.inserts.values():
            if is_successful(insert):
                return target_of(insert)
        return None

    @property
    def is_pending(self) -> bool:
        """Whether no insert has succeeded and the outcome of an insert is open."""
        is_open = any(insert.get("status") != "DONE" for insert in self.inserts.values())
        return self.instance is None and (self.is_unanswered or is_open)

    @property
    def is_missing(self) -> bool:
        """Whether every insert so far has failed."""
        return self.instance is None and not self.is_pending


def launch_singly(launch: PendingLaunch) -> tuple[LaunchedInstance, ...]:
    """Launch instances by an insert each, or read the results of earlier inserts.

    At most INSTANCES_MAX instances are launched; the caller launches the rest by another request.
    An instance that a zone refuses is inserted into the next zone, unless the offering, the request
    or the settings name the zone. A `together` request tries one zone, which depends on the token:
    if an insert fails, the created instances are deleted, and the launch has failed.

    Raises:
        ConfigurationError: more than INSTANCES_MAX instances together.
        CloudError: as GceCloud.launch.
    """
    request, settings = launch.request, launch.settings
    if request.together and request.count > INSTANCES_MAX:
        raise ConfigurationError(
            f"{request.count} instances together: at most {INSTANCES_MAX} while Google refuses "
            "bulk inserts; grant the launching account compute.instances.create for bulk inserts"
        )
    zones = _zones_to_try(launch)
    zones = zones[:1] if request.together else zones
    names = instance_names(request, settings)[:INSTANCES_MAX]
    attempts = [_Attempt(name, number) for number, name in enumerate(names)]
    _read_inserts(launch, attempts, zones)
    if not (request.together and any(attempt.errors for attempt in attempts)):
        _insert_missing(launch, attempts, zones)
    return _result(launch, attempts)


def _result(launch: PendingLaunch, attempts: Sequence[_Attempt]) -> tuple[LaunchedInstance, ...]:
    """Return the created instances of a launch that is over.

    Raises:
        LaunchUnderWay: the outcome of an instance is open, and at least one insert is accepted.
        OutcomeUnknown: no insert was answered, or the instances of a failed `together` request
            cannot be deleted.
        CloudError: no instance was created, or not all of a `together` request.
    """
    pending = [attempt.name for attempt in attempts if attempt.is_pending]
    made = [attempt.instance for attempt in attempts if attempt.instance is not None]
    if pending and not made and not any(attempt.inserts for attempt in attempts):
        raise OutcomeUnknown(f"Compute Engine answered no insert of {launch.text}")
    if pending:
        raise LaunchUnderWay(f"{len(pending)} single inserts make {launch.text}")
    errors = [error for attempt in attempts for error in attempt.errors]
    if launch.request.together and len(made) < len(attempts):
        _delete(launch, made)
        raise best_error(errors)
    if not made:
        raise best_error(errors)
    return tuple(made)


def _zones_to_try(launch: PendingLaunch) -> list[str]:
    """Return the zones to try, in order: the launch's only zone, or else the region's zones.

    The order depends on the token, so that launches are spread and a repeated call has the same
    order. Raises CloudError if the zones cannot be read, and ConfigurationError for a zone outside
    the region.
    """
    settings, token = launch.settings, launch.request.token
    if zone := launch_zone(launch.request, settings):
        return [zone]
    # This list names each zone, also without instances, and needs no further permission.
    pages = launch.api.read_pages(
        f"{settings.project}/aggregated/instances",
        filter=f'(name = "{instance_names(launch.request, settings)[0]}")',
        fields="nextPageToken,items/*/warning/code,items/*/instances(name)",
    )
    found = {last_segment(scope) for page in pages for scope in page.get("items", {})}
    zones = [zone for zone in found if region_of(zone) == settings.place]
    if not zones:
        raise OutcomeUnknown(f"Compute Engine lists no zone of {settings.place}")
    return sorted(zones, key=lambda zone: sha256(f"{token}/{zone}".encode()).digest())


def _insert_id(launch: PendingLaunch, number: int, zone: str) -> str:
    """Return the id by which Compute Engine recognizes a repeated insert."""
    return request_id(f"{launch.request.token}/{number}/{zone}")


def _read_inserts(
    launch: PendingLaunch, attempts: Sequence[_Attempt], zones: Sequence[str]
) -> None:
    """Add the operations and errors of earlier calls to the attempts.

    Raises OutcomeUnknown if the operations cannot be read, because instances may exist. Raises
    TokenReused if an operation is of another request.
    """
    ids = {
        _insert_id(launch, attempt.number, zone): (attempt, zone)
        for attempt in attempts
        for zone in zones
    }
    try:
        found = find_inserts(launch.api, launch.settings.project, list(ids))
    except CloudError as error:
        raise OutcomeUnknown(f"the inserts cannot be read: {error}") from None
    for operation in found:
        attempt, zone = ids[str(operation["clientOperationId"])]
        _add_insert(launch, attempt, zone, operation)


def _add_insert(launch: PendingLaunch, attempt: _Attempt, zone: str, operation: JsonObject) -> None:
    """Add an operation, and the error of a failed operation, to an attempt.

    Raises TokenReused if the operation creates an instance of another request.
    """
    name = target_of(operation).name
    if not is_named_by(name, launch.request):
        raise TokenReused(f"the launch token was already used, for {name}")
    attempt.inserts[zone] = operation
    if errors := errors_of(operation):
        attempt.errors.append(operation_error(errors))


def _insert_missing(
    launch: PendingLaunch, attempts: Sequence[_Attempt], zones: Sequence[str]
) -> None:
    """Insert each instance without an open or successful insert into zones that were not tried.

    A refusal of the caller, by throttling or for a missing permission, ends the inserts; any error
    ends those of a `together` request. Add the operations and errors to the attempts. Raises
    TokenReused.
    """
    properties = instance_properties(launch.request, launch.settings, launch.script)
    missing = [attempt for attempt in attempts if attempt.is_missing]

    def insert(attempt: _Attempt) -> None:
        for zone in zones:
            if attempt.errors and _ends_attempt(attempt.errors[-1]):
                return
            if attempt.is_missing and zone not in attempt.inserts:
                body = insert_body(attempt.name, zone, launch.settings, properties)
                _insert(launch, attempt, zone, body)

    with ThreadPoolExecutor(CONNECTIONS_MAX) as executor:
        for first in range(0, len(missing), CONNECTIONS_MAX):
            batch = missing[first : first + CONNECTIONS_MAX]
            list(executor.map(insert, batch))
            errors = [error for attempt in batch for error in attempt.errors]
            if any(map(is_caller_refused, errors)) or (errors and launch.request.together):
                return


def _insert(launch: PendingLaunch, attempt: _Attempt, zone: str, body: JsonObject) -> None:
    """Request an instance in a zone, and add the operation or the error to the attempt."""
    path = f"{launch.settings.project}/zones/{zone}/instances"
    try:
        identifier = _insert_id(launch, attempt.number, zone)
        operation = check_operation(launch.api.post(path, body, requestId=identifier))
        _add_insert(launch, attempt, zone, operation)
    except OutcomeUnknown:
        attempt.is_unanswered = True
    except TokenReused:
        raise
    except CloudError as error:
        # Names are unique to the request, so an earlier attempt created the instance.
        attempt.is_unanswered = attempt.is_unanswered or is_already_existing(error)
        if not is_already_existing(error):
            attempt.errors.append(error)


def _ends_attempt(error: CloudError) -> bool:
    """Whether every zone of the region would refuse the instance."""
    return is_caller_refused(error) or isinstance(error, QuotaExceeded)


def _delete(launch: PendingLaunch, made: Sequence[LaunchedInstance]) -> None:
    """Delete the instances of an incomplete launch.

    Instances that are gone are no error. Raises OutcomeUnknown if a deletion fails: the repeated
    launch then deletes again.
    """

    def delete(instance: LaunchedInstance) -> CloudError | None:
        path = f"{launch.settings.project}/zones/{instance.zone}/instances/{instance.name}"
        try:
            launch.api.delete(path)
        except CloudError as error:
            return None if is_gone(error) else error
        return None

    with ThreadPoolExecutor(CONNECTIONS_MAX) as executor:
        errors = [error for error in executor.map(delete, made) if error is not None]
    if errors:
        raise OutcomeUnknown(f"instances of an incomplete launch cannot be deleted: {errors[0]}")
