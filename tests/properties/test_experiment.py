"""An experiment under any order of ends, commands and continuations: all counts agree."""

from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.actors import era_rules as lifecycles
from control_plane.actors.experiment.trial_summaries import (
    SUMMARIES_PER_PART,
    Summaries,
    TrialSummary,
)
from control_plane.actors.messages.experiment import (
    ActivateRequested,
    CancelRequested,
    ContinueRequested,
    KillRequested,
    PauseRequested,
    SearchContinued,
    TrialEnded,
    TrialLengthReached,
    TrialValidationReported,
)
from control_plane.actors.records import Status
from control_plane.actors.step import CommandRefused
from control_plane.searchers.era_rules import LENGTH_ERA, STEP_ERA, SearchRules
from control_plane.searchers.method import ExitReason, MethodPlan
from control_plane.searchers.methods.grid import GridPlan
from control_plane.searchers.methods.random import RandomPlan
from control_plane.searchers.methods.single import SinglePlan
from control_plane.searchers.search import SearchPlan
from control_plane.searchers.space import Double, Group
from tests.unit.actors.actor_harness import ActorHarness
from tests.unit.actors.sample_messages import LENGTH, experiment_submitted

COMMANDS = (
    ActivateRequested(),
    PauseRequested(),
    CancelRequested(),
    KillRequested(),
    ContinueRequested(),
    SearchContinued(),
)
# Invalid trials are replaced without a limit, so a run has to stop making them.
INVALID_MAX = 3
ENDS = (
    (Status.COMPLETED, ""),
    (Status.COMPLETED, ExitReason.INVALID_HP),
    (Status.COMPLETED, ExitReason.USER_REQUESTED_STOP),
    (Status.ERROR, ExitReason.ERRORED),
    (Status.CANCELED, ExitReason.USER_CANCELED),
)

ERAS = st.sampled_from([STEP_ERA, LENGTH_ERA])
SPACE = Group({"lr": Double(0.1, 1.0, count=5)})
METHODS: st.SearchStrategy[MethodPlan] = st.one_of(
    st.builds(RandomPlan, st.just(LENGTH), st.sampled_from([1, 2, 7, 60]), st.integers(0, 3), ERAS),
    st.builds(GridPlan, st.just(LENGTH), st.integers(0, 3), ERAS),
    st.builds(SinglePlan, st.just(LENGTH), ERAS),
)


def begin_experiment(method: MethodPlan) -> ActorHarness:
    actor = ActorHarness("experiment#1")
    era = lifecycles.STEP_ERA if method.rules is STEP_ERA else lifecycles.LENGTH_ERA
    plan = SearchPlan(method, SPACE, 7)
    actor.deliver(experiment_submitted(plan, rules=era, searcher=method.kind))
    return actor


def summaries(actor: ActorHarness) -> list[TrialSummary]:
    results: list[TrialSummary] = []
    for index in range(-(-actor.state.trials // SUMMARIES_PER_PART)):
        part = actor.part(f"trials/{index}")
        assert isinstance(part, Summaries)
        results += part.trials
    return results


def open_trials(actor: ActorHarness) -> list[int]:
    run_generation = actor.state.run_generation
    return [
        number for number, summary in enumerate(summaries(actor)) if summary.is_open(run_generation)
    ]


def check(actor: ActorHarness) -> None:
    state, known = actor.state, summaries(actor)
    tally = state.search.tally
    assert state.trials == len(known) == tally.created
    assert state.trials_open == len(open_trials(actor)) == tally.created - tally.closed
    ends = [summary.status for summary in known if not summary.is_open(state.run_generation)]
    assert state.trials_completed == ends.count(Status.COMPLETED)
    assert state.trials_errored == ends.count(Status.ERROR)
    assert not state.status.is_final or not state.trials_open
    assert state.status.is_stopping <= bool(state.trials_open)
    assert state.progress is None or 0 <= state.progress <= 1
    assert tally.open_units >= 0
    assert (state.ended_ms is not None) == state.status.is_final
    # Every end asked for a collection.
    assert state.collection_number >= state.run_generation + state.status.is_final


class ExperimentDriver:
    """An experiment with messages that a real cluster could send."""

    def __init__(self, method: MethodPlan) -> None:
        self.actor = begin_experiment(method)
        self.invalid = 0

    def act(self, data: st.DataObject) -> None:
        numbers = open_trials(self.actor)
        if not numbers or data.draw(st.integers(0, 3)) == 0:
            self.command(data.draw(st.sampled_from(COMMANDS)))
            return
        number = data.draw(st.sampled_from(numbers))
        what = data.draw(st.integers(0, 3))
        if what == 0:
            self.deliver(TrialValidationReported(number, data.draw(st.integers(0, LENGTH)), 0.5))
        elif what == 1:
            self.deliver(TrialLengthReached(number, LENGTH, 0.5, closed=True))
        else:
            self.end(number, *data.draw(st.sampled_from(ENDS)))

    def end(self, number: int, status: Status, reason: str) -> None:
        if reason == ExitReason.INVALID_HP:
            self.invalid += 1
            reason = reason if self.invalid <= INVALID_MAX else ""
        message = TrialEnded(number, status, reason, run_generation=self.actor.state.run_generation)
        self.deliver(message)
        before = self.actor.state
        # Repeated, and late from an earlier run.
        self.actor.deliver(
            message, TrialEnded(number, Status.ERROR, ExitReason.ERRORED, run_generation=-1)
        )
        assert self.actor.state == before

    def deliver(self, message: object) -> None:
        self.actor.deliver(message)
        check(self.actor)

    def command(self, command: object) -> None:
        before = self.actor.state
        try:
            self.deliver(command)
        except CommandRefused:
            assert self.actor.state == before

    def finish(self) -> None:
        """Complete every trial with work left."""
        while not self.actor.state.status.is_final:
            numbers = open_trials(self.actor)
            if not numbers:
                self.deliver(SearchContinued())
            for number in numbers:
                self.end(number, Status.COMPLETED, "")


def expected_trials(method: MethodPlan, rules: SearchRules, invalid: int) -> int:
    """Return the trials of a completed search, including replacements of invalid trials."""
    match method:
        case RandomPlan(max_trials=trials):
            return trials + (invalid if rules.replaces_invalid_hparams else 0)
        case GridPlan():
            return 5
        case SinglePlan():
            return 1
        case other:
            raise AssertionError(other)


@settings(deadline=None, derandomize=True, max_examples=120)
@given(METHODS, st.data())
def test_counts_agree_and_a_continued_search_creates_all_trials(
    method: MethodPlan, data: st.DataObject
) -> None:
    driver = ExperimentDriver(method)
    for _ in range(data.draw(st.integers(0, 25))):
        driver.act(data)
    driver.finish()
    while driver.actor.state.status is not Status.COMPLETED or _has_unfinished_trial(driver.actor):
        before = driver.actor.state
        driver.command(ContinueRequested())
        if driver.actor.state == before:
            break
        driver.finish()
    actor = driver.actor
    invalid = actor.state.search.tally.invalid
    assert actor.state.trials == expected_trials(method, method.rules, invalid)
    assert {summary.status for summary in summaries(actor)} == {Status.COMPLETED}


def _has_unfinished_trial(actor: ActorHarness) -> bool:
    return any(summary.status != Status.COMPLETED for summary in summaries(actor))
