"""A driver for tests of custom searches: a test sends posts and events, and reads operations."""

from collections.abc import Mapping
from dataclasses import replace

from control_plane.actors.lengths import Unit
from control_plane.searchers.blob_store import MemoryBlobStore
from control_plane.searchers.era_rules import LENGTH_ERA
from control_plane.searchers.event_queue import QueuedEvent, read_events
from control_plane.searchers.method import Event
from control_plane.searchers.methods.custom import CustomPlan, CustomState
from control_plane.searchers.posted_operations import PostedOperations, parse_operations
from control_plane.searchers.randomness import Generator
from control_plane.searchers.search import (
    SearchPlan,
    TrialOperation,
    begin_search,
    completed_share,
    handle_event,
    handle_external_input,
)
from control_plane.searchers.space import Group

CREATE_MAX = 48


def request_id(number: int) -> str:
    """Return the request id of a test's trial `number`."""
    return f"{number:08x}-0000-4000-8000-000000000000"


def create_operation(number: int, hparams: object = None) -> dict[str, object]:
    return {"type": "create", "request_id": request_id(number), "hparams": hparams or {"x": number}}


def validate_after_operation(number: int, length: object) -> dict[str, object]:
    return {"type": "validate_after", "request_id": request_id(number), "length": length}


def close_operation(number: int) -> dict[str, object]:
    return {"type": "close", "request_id": request_id(number)}


def shutdown_operation(**how: object) -> dict[str, object]:
    return {"type": "shutdown", **how}


class CustomSearchDriver:
    """A custom search. The test sends the events of the trials."""

    def __init__(self, unit: Unit = "batches") -> None:
        self._plan = SearchPlan(CustomPlan(unit, LENGTH_ERA), Group({}), 7)
        self._generator = Generator.from_seed(7)
        self.blobs = MemoryBlobStore()
        self.state = begin_search(self._plan, self.blobs).state

    @property
    def method(self) -> CustomState:
        assert isinstance(self.state.method, CustomState)
        return self.state.method

    @property
    def progress(self) -> float:
        return completed_share(self._plan, self.state)

    def post(
        self,
        *operations: Mapping[str, object],
        acknowledged: int | None = None,
        number: int | None = None,
    ) -> tuple[TrialOperation, ...]:
        """Send a post and return the operations of the search.

        By default, the post has the next number and acknowledges all events.
        """
        posted = PostedOperations(
            self.method.post + 1 if number is None else number,
            self.method.newest if acknowledged is None else acknowledged,
            parse_operations(operations),
        )
        step = handle_external_input(
            self._plan, self.state, self._generator, posted, CREATE_MAX, self.blobs
        )
        assert not step.more
        self.state = step.state
        return step.operations

    def send_event(self, event: Event) -> tuple[TrialOperation, ...]:
        """Send an event of a trial and return the operations of the search."""
        step = handle_event(self._plan, self.state, self._generator, event, CREATE_MAX, self.blobs)
        self.state = step.state
        return step.operations

    def events(self) -> list[QueuedEvent]:
        """Return the unacknowledged events. Fail if a number is missing."""
        first, last = self.method.acknowledged + 1, self.method.newest
        numbered_events = list(read_events(self.blobs, first, last))
        assert [number for number, _ in numbered_events] == list(range(first, last + 1))
        return [event for _, event in numbered_events]

    def skip_to(self, newest: int) -> None:
        """Set the state as if `newest` events were queued and acknowledged."""
        method = replace(self.method, newest=newest, acknowledged=newest)
        self.state = replace(self.state, method=method)
