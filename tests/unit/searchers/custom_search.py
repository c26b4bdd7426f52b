"""A custom search under its driver: posts go in, operations and queued events come out."""

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
    """Return the request id that the method of a test gives its trial of that number."""
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
    """A custom search without trials: a test sends their events."""

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
        """Send the next post, which has seen every event; return the search's operations."""
        posted = PostedOperations(
            self.method.post + 1 if number is None else number,
            self.method.newest if acknowledged is None else acknowledged,
            parse_operations(operations),
        )
        found = handle_external_input(
            self._plan, self.state, self._generator, posted, CREATE_MAX, self.blobs
        )
        assert not found.more
        self.state = found.state
        return found.operations

    def send_event(self, event: Event) -> tuple[TrialOperation, ...]:
        """Send a trial's event; return the search's operations."""
        found = handle_event(self._plan, self.state, self._generator, event, CREATE_MAX, self.blobs)
        self.state = found.state
        return found.operations

    def events(self) -> list[QueuedEvent]:
        """Return the unacknowledged events, whose numbers have no gap."""
        first, last = self.method.acknowledged + 1, self.method.newest
        found = list(read_events(self.blobs, first, last))
        assert [number for number, _ in found] == list(range(first, last + 1))
        return [event for _, event in found]

    def skip_to(self, newest: int) -> None:
        """Pretend that so many events were queued, and all acknowledged."""
        method = replace(self.method, newest=newest, acknowledged=newest)
        self.state = replace(self.state, method=method)
