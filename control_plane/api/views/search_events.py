"""The events of a custom search, as its search method reads them."""

from typing import Any

from control_plane.actors import addresses
from control_plane.actors.experiment_custom import method_of
from control_plane.actors.records import Status
from control_plane.api.bodies import Body
from control_plane.api.services import Services
from control_plane.api.views.experiment import found
from control_plane.api.views.search_method import note
from control_plane.searchers.events import EventKind, Told, read

EVENTS_PER_ANSWER = 500


class SearchEvent(Body):
    """One event; what its type has nothing to say of is absent."""

    id: int
    type: str
    request_id: str | None = None
    length: int | None = None
    metric: float | None = None
    units: float | None = None
    reason: str | None = None


class SearchEvents(Body):
    """Events in order. `newest` is the last one there is, `post` the number of the last post that
    was taken. Once the experiment is not `active`, nothing more is taken.
    """

    events: list[SearchEvent]
    newest: int
    acknowledged: int
    post: int
    state: Status
    active: bool


def after(services: Services, experiment_id: int, number: int) -> SearchEvents:
    """The first unacknowledged events behind `number`.

    Raises:
        ApiError: not_found.
        Refused: the search is none of a user's method.
    """
    state, _ = found(services, experiment_id)
    method = method_of(state)
    first = max(number, method.acknowledged) + 1
    last = min(method.newest, first + EVENTS_PER_ANSWER - 1)
    told = read(_StoredParts(services, experiment_id), first, last)
    return SearchEvents(
        events=[SearchEvent(id=number, **_fields(event)) for number, event in told],
        newest=method.newest,
        acknowledged=method.acknowledged,
        post=method.post,
        state=state.status,
        active=not (state.status.stopping or state.status.final),
    )


def heard(services: Services, experiment_id: int) -> None:
    """Notes that the experiment's search method called; ApiError and Refused as `after`."""
    state, _ = found(services, experiment_id)
    method_of(state)
    note(services, experiment_id)


class _StoredParts:
    """What the search keeps, as of now."""

    def __init__(self, services: Services, experiment_id: int) -> None:
        self._engine = services.engine
        self._address = addresses.experiment(experiment_id)

    def read(self, name: str) -> bytes | None:
        """See Parts."""
        found: bytes | None = self._engine.part(self._address, f"search/{name}")
        return found

    def write(self, name: str, piece: bytes) -> None:
        """Raises TypeError: who looks changes nothing."""
        raise TypeError(f"{name} is only read here")


def _fields(event: Told) -> dict[str, Any]:
    fields: dict[str, Any] = {"type": event.kind.name.lower(), "request_id": event.request_id}
    match event.kind:
        case EventKind.INITIAL_OPERATIONS:
            fields["request_id"] = None
        case EventKind.TRIAL_PROGRESS:
            fields["units"] = event.value
        case EventKind.VALIDATION_COMPLETED:
            fields |= {"length": event.length, "metric": event.value}
        case EventKind.TRIAL_EXITED_EARLY:
            fields["reason"] = event.reason
        case EventKind.TRIAL_CREATED | EventKind.TRIAL_CLOSED:
            pass
    return fields
