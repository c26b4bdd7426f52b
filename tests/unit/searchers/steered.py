"""A custom search under its driver: what is posted to it, and what it has to tell."""

from collections.abc import Mapping
from dataclasses import replace

from control_plane.actors.lengths import Unit
from control_plane.searchers.custom import CustomPlan, CustomState
from control_plane.searchers.events import Told, read
from control_plane.searchers.method import Event
from control_plane.searchers.parts import PartsInMemory
from control_plane.searchers.posted import Posted, asked
from control_plane.searchers.randomness import Generator
from control_plane.searchers.rules import LENGTH_ERA
from control_plane.searchers.search import (
    SearchPlan,
    TrialOperation,
    advise,
    begin,
    handle,
    progress,
)
from control_plane.searchers.space import Group

CREATE_MAX = 48


def trial(number: int) -> str:
    """The request id that the method of a test gives its trial of that number."""
    return f"{number:08x}-0000-4000-8000-000000000000"


def create(number: int, hparams: object = None) -> dict[str, object]:
    return {"type": "create", "request_id": trial(number), "hparams": hparams or {"x": number}}


def after(number: int, length: object) -> dict[str, object]:
    return {"type": "validate_after", "request_id": trial(number), "length": length}


def close(number: int) -> dict[str, object]:
    return {"type": "close", "request_id": trial(number)}


def shut(**how: object) -> dict[str, object]:
    return {"type": "shutdown", **how}


class Steered:
    """A search that no trial runs for: a test says what they report."""

    def __init__(self, unit: Unit = "batches") -> None:
        self._plan = SearchPlan(CustomPlan(unit, LENGTH_ERA), Group({}), 7)
        self._generator = Generator.seeded(7)
        self.parts = PartsInMemory()
        self.state = begin(self._plan, self.parts).state

    @property
    def method(self) -> CustomState:
        assert isinstance(self.state.method, CustomState)
        return self.state.method

    @property
    def progress(self) -> float:
        return progress(self._plan, self.state)

    def post(
        self,
        *operations: Mapping[str, object],
        acknowledged: int | None = None,
        number: int | None = None,
    ) -> tuple[TrialOperation, ...]:
        """The next post, which has seen every event; what is to be done."""
        posted = Posted(
            self.method.post + 1 if number is None else number,
            self.method.newest if acknowledged is None else acknowledged,
            asked(operations),
        )
        found = advise(self._plan, self.state, self._generator, posted, CREATE_MAX, self.parts)
        assert not found.more
        self.state = found.state
        return found.operations

    def told(self, event: Event) -> tuple[TrialOperation, ...]:
        """A trial reported; what is to be done."""
        found = handle(self._plan, self.state, self._generator, event, CREATE_MAX, self.parts)
        self.state = found.state
        return found.operations

    def events(self) -> list[Told]:
        """What is unacknowledged; its numbers have no gap."""
        first, last = self.method.acknowledged + 1, self.method.newest
        found = list(read(self.parts, first, last))
        assert [number for number, _ in found] == list(range(first, last + 1))
        return [told for _, told in found]

    def skip_to(self, newest: int) -> None:
        """As if that many events had been told, and all acknowledged."""
        method = replace(self.method, newest=newest, acknowledged=newest)
        self.state = replace(self.state, method=method)
