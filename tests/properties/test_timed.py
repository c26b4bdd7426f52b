"""Halving by a time metric under any legal order of reports and ends."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.searchers.blob_store import MemoryBlobStore
from control_plane.searchers.era_rules import LENGTH_ERA
from control_plane.searchers.halving.asynchronous import HalvingPlan
from control_plane.searchers.halving.multi_bracket import MultiBracketPlan
from control_plane.searchers.method import (
    CreateTrial,
    Event,
    ExitReason,
    Shutdown,
    Stop,
    TrialClosed,
    TrialExitedEarly,
    TrialValidationReported,
)
from control_plane.searchers.randomness import Generator
from control_plane.searchers.search import (
    SearchPlan,
    SearchStep,
    begin_search,
    completed_share,
    expand_creates,
    handle_event,
)
from control_plane.searchers.space import Double, Group

INVALID_MAX = 4
halvings = st.builds(
    HalvingPlan,
    max_length=st.integers(1, 20),
    num_rungs=st.integers(1, 4),
    divisor=st.sampled_from([1.5, 2.0, 3.0]),
    max_trials=st.integers(1, 10),
    max_concurrent_trials=st.integers(0, 4),
    smaller_is_better=st.booleans(),
    rules=st.just(LENGTH_ERA),
    stops=st.just(True),
    by_time=st.just(True),
)
several = st.lists(halvings, min_size=1, max_size=3)


@dataclass
class Run:
    """A search with trials that report at random; `open` has the time of each open trial."""

    search: SearchPlan
    create_max: int
    open: dict[int, float] = field(default_factory=dict)
    stopped: set[int] = field(default_factory=set)
    created: int = 0
    invalid: int = 0
    over: bool = False

    def __post_init__(self) -> None:
        self.blobs = MemoryBlobStore()
        self.generator = Generator.from_seed(self.search.seed)
        self._accept_step(begin_search(self.search, self.blobs))

    @property
    def progress(self) -> float:
        return completed_share(self.search, self.state)

    def send_event(self, event: Event) -> None:
        self._accept_step(
            handle_event(
                self.search, self.state, self.generator, event, self.create_max, self.blobs
            )
        )

    def advance(self, data: st.DataObject) -> None:
        """Let an open trial do a legal step."""
        trial = data.draw(st.sampled_from(sorted(self.open)))
        match data.draw(st.integers(0, 9)):
            case 0:
                self._exit_trial(data, trial)
            case 1 | 2 if trial in self.stopped:
                del self.open[trial]
                self.send_event(TrialClosed(trial, 0.0))
            case _:
                metric = data.draw(st.sampled_from([0.0, 1.0, 2.0]) | st.floats(allow_nan=False))
                # Sometimes a trial repeats a report from before a failure.
                time = self.open[trial] + data.draw(st.sampled_from([-1.0, 0.0, 0.5, 3.0, 30.0]))
                self.open[trial] = max(time, 0.0)
                self.send_event(TrialValidationReported(trial, self.open[trial], metric))

    def _exit_trial(self, data: st.DataObject, trial: int) -> None:
        reasons = [r for r in ExitReason if self.invalid < INVALID_MAX or not r.is_invalid_hparams]
        reason = data.draw(st.sampled_from(reasons))
        self.invalid += reason.is_invalid_hparams
        del self.open[trial]
        self.send_event(TrialExitedEarly(trial, reason, 0.0))

    def _accept_step(self, step: SearchStep) -> None:
        while True:
            for operation in step.operations:
                assert not self.over
                match operation:
                    case CreateTrial(trial=trial):
                        assert trial == self.created
                        self.created += 1
                        self.open[trial] = 0.0
                    case Stop(trial):
                        assert trial not in self.stopped, f"trial {trial} was stopped twice"
                        assert trial in self.open
                        self.stopped.add(trial)
                    case Shutdown():
                        self.over = True
                    case other:
                        raise AssertionError(other)
            self.state = step.state
            if not step.more:
                return
            step = expand_creates(
                self.search, self.state, self.generator, self.create_max, self.blobs
            )


@settings(deadline=None, derandomize=True, max_examples=50)
@given(several, st.integers(1, 5), st.data())
def test_search_measured_by_time_ends_within_the_number_of_trials(
    brackets: list[HalvingPlan], create_max: int, data: st.DataObject
) -> None:
    plan = brackets[0] if len(brackets) == 1 else MultiBracketPlan(tuple(brackets))
    run = Run(SearchPlan(plan, Group({"x": Double(0.0, 1.0)}), 7), create_max)
    done = run.progress
    while not run.over:
        assert run.open, "no trial is left, and the search goes on"
        invalid = run.invalid
        run.advance(data)
        # Results of a trial that later turns out invalid are removed.
        assert run.invalid > invalid or run.progress >= done - 1e-12
        done = run.progress
    # Each trial was stopped or failed, and so was followed by a further trial.
    assert run.created == sum(one.max_trials for one in brackets) + run.invalid
    assert not run.open
    assert run.progress == 1.0
