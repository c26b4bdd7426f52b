"""A driver for tests of searches: a test sends the events of trials and reads the answers.

The driver encodes and decodes the state between all steps.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pydantic import TypeAdapter

from control_plane.searchers.method import (
    Close,
    CreateTrial,
    Event,
    ExitReason,
    MethodPlan,
    Shutdown,
    TrainTo,
    TrialClosed,
    TrialExitedEarly,
    TrialLengthReached,
    TrialProgressed,
)
from control_plane.searchers.randomness import Generator
from control_plane.searchers.search import (
    SearchPlan,
    SearchState,
    SearchStep,
    begin_search,
    completed_share,
    expand_creates,
    handle_event,
)
from control_plane.searchers.space import Double, Group
from tests.unit.searchers.recording_blob_store import RecordingBlobStore

SPACE = Group({"x": Double(0.0, 1.0, None)})
STATE = TypeAdapter(SearchState)


class Answer(NamedTuple):
    """A search's answer to one event, including later expanded creates and closes."""

    created: int
    """The number of created trials."""
    trains: dict[int, int]
    """The new length of each trial that trains further."""
    closes: frozenset[int]
    """The closed trials."""


@dataclass
class Trial:
    """The state of an open trial."""

    length: int
    """The requested length."""
    reached: int = 0
    """The latest reached length."""
    closed: bool = False
    """Whether the trial ends after the requested length."""
    units: float = 0.0
    """The reported training."""

    @property
    def is_waiting(self) -> bool:
        """Return whether the trial waits for the next length."""
        return self.reached == self.length and not self.closed


@dataclass
class DrivenSearch:
    """A search with its driver."""

    plan: MethodPlan
    expand_max: int = 100
    """The largest number of trials that one step creates."""
    waits: bool = False
    """Whether steps leave remaining creates and closes for `expand_all` and `expand_once`."""
    space: Group = SPACE
    seed: int = 7
    trials: dict[int, Trial] = field(default_factory=dict)
    """The open trials."""
    created: list[CreateTrial] = field(default_factory=list)
    """All created trials."""
    shutdowns: list[Shutdown] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.search = SearchPlan(self.plan, self.space, self.seed)
        self.blobs = RecordingBlobStore()
        self.more = False
        self._generator = Generator.from_seed(self.seed)
        self.state: SearchState
        self.first = self._accept_step(begin_search(self.search, self.blobs))

    def report_result(self, trial: int, metric: float) -> Answer:
        """Report the trial's validation at the requested length; return the answer."""
        now = self.trials[trial]
        assert now.reached < now.length, f"trial {trial} was not training"
        now.reached = now.length
        return self.send_event(TrialLengthReached(trial, now.length, metric))

    def report_results(self, metrics: Mapping[int, float]) -> Answer:
        """Report several results in order; return the answer to the last result."""
        answers = [self.report_result(trial, metric) for trial, metric in metrics.items()]
        return answers[-1]

    def report_progress(self, trial: int, units: float) -> Answer:
        """Report `units` more training; return the answer."""
        self.trials[trial].units += units
        return self.send_event(TrialProgressed(trial, units))

    def exit_trial(self, trial: int, reason: ExitReason = ExitReason.ERRORED) -> Answer:
        """Report that the trial ended early; return the answer."""
        now = self.trials.pop(trial)
        return self.send_event(TrialExitedEarly(trial, reason, now.units, now.reached))

    def end_trial(self, trial: int) -> Answer:
        """Report that a closed trial ended normally; return the answer."""
        now = self.trials.pop(trial)
        assert now.closed
        assert now.reached == now.length
        return self.send_event(TrialClosed(trial, now.units))

    def send_event(self, event: Event) -> Answer:
        """Send an event; return the answer."""
        return self._accept_step(
            self._run_step(
                lambda state, generator: handle_event(
                    self.search, state, generator, event, self.expand_max, self.blobs
                )
            )
        )

    def expand_once(self) -> Answer:
        """Expand at most `expand_max` of the remaining creates and closes; return the answer."""
        return self._record_step(
            self._run_step(
                lambda state, generator: expand_creates(
                    self.search, state, generator, self.expand_max, self.blobs
                )
            )
        )

    def expand_all(self) -> Answer:
        """Expand all remaining creates and closes; return the joined answer."""
        answer = self.expand_once()
        while self.more:
            answer = _join_answers(answer, self.expand_once())
        return answer

    @property
    def progress(self) -> float:
        return completed_share(self.search, self.state)

    def _run_step(self, step_of: Callable[[SearchState, Generator], SearchStep]) -> SearchStep:
        stored = STATE.validate_json(STATE.dump_json(self.state))
        assert stored == self.state
        generator = Generator.from_state(self._generator.key, stored.position)
        step = step_of(stored, generator)
        self._generator = generator
        return step

    def _accept_step(self, step: SearchStep) -> Answer:
        answer = self._record_step(step)
        return answer if self.waits or not self.more else _join_answers(answer, self.expand_all())

    def _record_step(self, step: SearchStep) -> Answer:
        self.state, self.more = step.state, step.more
        created, trains, closes = len(self.created), dict[int, int](), set[int]()
        for operation in step.operations:
            assert not self.shutdowns, f"{operation} came after the end"
            match operation:
                case CreateTrial(trial=trial, length=length, closed=closed):
                    assert trial == len(self.created)
                    assert length is not None
                    self.trials[trial] = Trial(length, closed=closed)
                    self.created.append(operation)
                case TrainTo(trial, length):
                    assert length > self.trials[trial].length
                    assert not self.trials[trial].closed
                    self.trials[trial].length = trains[trial] = length
                case Close(trial):
                    assert not self.trials[trial].closed, f"trial {trial} was closed twice"
                    self.trials[trial].closed = True
                    closes.add(trial)
                case Shutdown():
                    self.shutdowns.append(operation)
        count = len(self.created) - created
        assert count <= self.expand_max
        return Answer(count, trains, frozenset(closes))


def _join_answers(answer: Answer, later: Answer) -> Answer:
    created, trains = answer.created + later.created, answer.trains | later.trains
    return Answer(created, trains, answer.closes | later.closes)


EMPTY_ANSWER = Answer(0, {}, frozenset())
CREATING_ANSWER = Answer(1, {}, frozenset())


def training_answer(
    trial: int, length: int, *, created: int = 0, closes: tuple[int, ...] = ()
) -> Answer:
    """Return an answer that lets one trial train to `length`."""
    return Answer(created, {trial: length}, frozenset(closes))


def closing_answer(*trials: int, created: int = 0) -> Answer:
    """Return an answer that closes trials."""
    return Answer(created, {}, frozenset(trials))
