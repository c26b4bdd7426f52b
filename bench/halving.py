"""The cost of decisions of an asynchronous halving with full rungs: time, state, writes."""

import random
import time
from collections import deque
from collections.abc import Iterator
from statistics import mean, median
from typing import NamedTuple

from pydantic import TypeAdapter

from bench.figures import Row, Scale, at_most, number, progress, row_without_target
from bench.trials import Load, halving_of
from bench.writes import UNITS_MAX, growth, measure_writes, spread
from control_plane.searchers.blob_store import MemoryBlobStore
from control_plane.searchers.method import (
    Close,
    CreateTrial,
    TrainTo,
    TrialClosed,
    TrialLengthReached,
)
from control_plane.searchers.methods.adaptive_asha import plan_adaptive_asha
from control_plane.searchers.randomness import Generator
from control_plane.searchers.search import (
    SearchPlan,
    SearchState,
    begin_search,
    expand_creates,
    handle_event,
)
from control_plane.searchers.space import Double, Group

DECISION_MS_MAX = 1.0
BYTES_PER_TRIAL_MAX = 32
# The median is taken over the last decisions of a nearly full search.
LAST = 2_000
CREATE_MAX = 48
CONCURRENT = 16

_STATE: TypeAdapter[SearchState] = TypeAdapter(SearchState)


class _PartsWithSizes(MemoryBlobStore):
    """Parts with a record of the sizes that the current decision has written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: dict[str, int] = {}

    def write(self, name: str, blob: bytes) -> None:
        super().write(name, blob)
        self.written[name] = len(blob)


class _Decision(NamedTuple):
    """The cost of a decision: the time, and the written bytes of the search's state."""

    ms: float
    bytes: int


class _Search:
    """A search with trials that train in no time, `CONCURRENT` at a time, first in, first out."""

    def __init__(self, trials: int) -> None:
        space = Group({"x": Double(0.0, 1.0)})
        self._plan = SearchPlan(
            plan_adaptive_asha(halving_of(trials, CONCURRENT), "standard"), space, 7
        )
        self._generator = Generator.from_seed(7)
        self._chance = random.Random(7)
        self._waiting: deque[TrialLengthReached | TrialClosed] = deque()
        self.blobs = _PartsWithSizes()
        self.created = 0
        self._step = begin_search(self._plan, self.blobs)
        self._take()

    def run(self, created_max: int) -> list[_Decision]:
        """Run until `created_max` trials were created, and return the last decisions."""
        found: list[_Decision] = []
        while self._waiting and self.created < created_max:
            event = self._waiting.popleft()
            self.blobs.written.clear()
            started = time.perf_counter()
            self._step = handle_event(
                self._plan, self._step.state, self._generator, event, CREATE_MAX, self.blobs
            )
            if created_max - self.created <= LAST and isinstance(event, TrialLengthReached):
                ms = (time.perf_counter() - started) * 1000
                head = len(_STATE.dump_json(self._step.state))
                found.append(_Decision(ms, head + sum(self.blobs.written.values())))
            self._take()
        return found

    def _take(self) -> None:
        while True:
            for operation in self._step.operations:
                match operation:
                    case CreateTrial(trial=trial, length=int(length)):
                        self.created += 1
                        self._waiting.append(
                            TrialLengthReached(trial, length, self._chance.random())
                        )
                    case TrainTo(trial, length):
                        self._waiting.append(
                            TrialLengthReached(trial, length, self._chance.random())
                        )
                    case Close(trial):
                        self._waiting.append(TrialClosed(trial, 0.0))
                    case _:
                        pass
            if not self._step.more:
                return
            self._step = expand_creates(
                self._plan, self._step.state, self._generator, CREATE_MAX, self.blobs
            )


def halving(scale: Scale) -> Iterator[Row]:
    """Single decisions of searches by themselves, then whole experiments through the engine."""
    few, many = scale.halving_trials
    with progress(f"adaptive_asha of {many:,} trials"):
        small, large = _Search(few), _Search(many)
        before, after = small.run(few), large.run(many)
    beside = f"with {few:,}: {number(median(one.ms for one in before))} ms"
    what = f"a decision of adaptive_asha with {many:,} trials"
    ms = median(one.ms for one in after)
    yield at_most(what, ms, DECISION_MS_MAX, "ms", beside=beside)
    what = f"search state written by a decision of adaptive_asha with {many:,} trials"
    beside = f"with {few:,}: {number(mean(one.bytes for one in before))} bytes"
    yield row_without_target(what, mean(one.bytes for one in after), "bytes", beside=beside)
    kept = sum(map(len, large.blobs.contents.values())) / many
    what = f"state of adaptive_asha with {many:,} trials"
    yield at_most(what, kept, BYTES_PER_TRIAL_MAX, "bytes a trial")
    accounts = [measure_writes(Load(trials, searcher="adaptive_asha")) for trials in scale.sizes]
    what = f"write units per decision of adaptive_asha, {scale.sizes[-1]:,} trials"
    units = accounts[-1].units_per_decision()
    beside = spread(accounts[-1].per_decision())
    yield at_most(what, units, UNITS_MAX, "units", beside=beside)
    sizes = " / ".join(f"{trials:,}" for trials in scale.sizes)
    per_decision = [sum(one.bytes) / sum(one.decisions) for one in accounts]
    yield growth("bytes written per decision of adaptive_asha", per_decision, sizes)
