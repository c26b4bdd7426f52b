"""Query of a custom search's events, which the user's search method polls."""

import json
from typing import Any

from control_plane.actors import addresses
from control_plane.actors.experiment.custom_search import custom_state
from control_plane.actors.records import Status
from control_plane.queries.answer import Answer
from control_plane.queries.experiment import get_experiment
from control_plane.searchers.event_queue import EventKind, QueuedEvent, read_events
from control_plane.services import Services


class SearchEvent(Answer):
    """An event of a custom search.

    Fields that the event's `type` does not have are absent. `metric` is the searcher metric as the
    trial reported it: usually a number, but any JSON value is possible.
    """

    id: int
    type: str
    request_id: str | None = None
    length: int | None = None
    metric: Any = None
    units: float | None = None
    reason: str | None = None


class SearchEvents(Answer):
    """Events of a custom search, in order.

    `newest` is the number of the latest event. Events up to number `acknowledged` were
    acknowledged. `post` is the number of the last accepted post. When `active` is false, the
    experiment accepts no more posts.
    """

    events: list[SearchEvent]
    newest: int
    acknowledged: int
    post: int
    state: Status
    active: bool


def list_events(services: Services, experiment_id: int, after: int) -> SearchEvents:
    """Return the first unacknowledged events with numbers greater than `after`.

    The list has at most `search_events_max` events, and may be empty. The call is not recorded, and
    nothing is acknowledged.

    Raises:
        RequestError: not_found, if the experiment does not exist; conflict (as CommandRefused), if
            the experiment's search is not a custom search.
    """
    state, _ = get_experiment(services, experiment_id)
    method = custom_state(state)
    first = max(after, method.acknowledged) + 1
    last = min(method.newest, first + services.limits.search_events_max - 1)
    numbered = read_events(_StoredParts(services, experiment_id), first, last)
    return SearchEvents(
        events=[SearchEvent(id=number, **_fields(event)) for number, event in numbered],
        newest=method.newest,
        acknowledged=method.acknowledged,
        post=method.post,
        state=state.status,
        active=not (state.status.is_stopping or state.status.is_final),
    )


class _StoredParts:
    """Read access to the stored parts of an experiment's search, which are named rows of its larger
    state.
    """

    def __init__(self, services: Services, experiment_id: int) -> None:
        self._engine = services.engine
        self._address = addresses.experiment(experiment_id)

    def read(self, name: str) -> bytes | None:
        """Return the content of a part. None if the part does not exist."""
        content: bytes | None = self._engine.read_part(self._address, f"search/{name}")
        return content

    def write(self, name: str, piece: bytes) -> None:
        """Raise TypeError: a query does not write parts."""
        raise TypeError(f"{name} is read-only here")


def _fields(event: QueuedEvent) -> dict[str, Any]:
    """Return the fields of the event's `SearchEvent`, `id` excepted. The fields depend on the
    event's kind.
    """
    fields: dict[str, Any] = {"type": event.kind.name.lower(), "request_id": event.request_id}
    match event.kind:
        case EventKind.INITIAL_OPERATIONS:
            fields["request_id"] = None
        case EventKind.TRIAL_PROGRESS:
            fields["units"] = event.value
        case EventKind.VALIDATION_COMPLETED:
            metric = json.loads(event.reported) if event.reported else event.value
            fields |= {"length": event.length, "metric": metric}
        case EventKind.TRIAL_EXITED_EARLY:
            fields["reason"] = event.reason
        case EventKind.TRIAL_CREATED | EventKind.TRIAL_CLOSED | EventKind.VALUE_REPORTED:
            pass
    return fields
