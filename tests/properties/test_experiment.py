"""An experiment under any order of ends, commands and continuations: its books agree."""

from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.actors import rules as lifecycles
from control_plane.actors.experiment_messages import (
    ActivateRequested,
    CancelRequested,
    ContinueRequested,
    KillRequested,
    PauseRequested,
    SearchContinued,
    TrialEnded,
    TrialLengthReached,
    TrialValidated,
)
from control_plane.actors.experiment_summaries import SUMMARIES_PER_PART, Summaries, TrialSummary
from control_plane.actors.records import Status
from control_plane.actors.step import Refused
from control_plane.searchers.grid import GridPlan
from control_plane.searchers.method import ExitReason
from control_plane.searchers.random import RandomPlan
from control_plane.searchers.rules import LENGTH_ERA, STEP_ERA, Rules
from control_plane.searchers.search import MethodPlan, SearchPlan
from control_plane.searchers.single import SinglePlan
from control_plane.searchers.space import Double, Group
from tests.unit.actors.desk import Desk
from tests.unit.actors.samples import LENGTH, submitted

COMMANDS = (
    ActivateRequested(),
    PauseRequested(),
    CancelRequested(),
    KillRequested(),
    ContinueRequested(),
    SearchContinued(),
)
# Invalid trials are replaced without end, so a run has to stop making them.
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


def begun(method: MethodPlan) -> Desk:
    desk = Desk("experiment#1")
    era = lifecycles.STEP_ERA if method.rules is STEP_ERA else lifecycles.LENGTH_ERA
    plan = SearchPlan(method, SPACE, 7)
    desk.tell(submitted(plan, rules=era, searcher=method.kind))
    return desk


def summaries(desk: Desk) -> list[TrialSummary]:
    found: list[TrialSummary] = []
    for index in range(-(-desk.state.trials // SUMMARIES_PER_PART)):
        part = desk.part(f"trials/{index}")
        assert isinstance(part, Summaries)
        found += part.trials
    return found


def still_open(desk: Desk) -> list[int]:
    life = desk.state.life
    return [number for number, summary in enumerate(summaries(desk)) if summary.is_open(life)]


def check(desk: Desk) -> None:
    state, known = desk.state, summaries(desk)
    tally = state.search.tally
    assert state.trials == len(known) == tally.created
    assert state.trials_open == len(still_open(desk)) == tally.created - tally.closed
    ends = [summary.status for summary in known if not summary.is_open(state.life)]
    assert state.trials_completed == ends.count(Status.COMPLETED)
    assert state.trials_errored == ends.count(Status.ERROR)
    assert not state.status.final or not state.trials_open
    assert state.status.stopping <= bool(state.trials_open)
    assert state.progress is None or 0 <= state.progress <= 1
    assert tally.open_units >= 0
    assert (state.ended_ms is not None) == state.status.final
    # Every end asked for a collection.
    assert state.generation >= state.life + state.status.final


class Played:
    """An experiment that is told what a legal cluster could tell it."""

    def __init__(self, method: MethodPlan) -> None:
        self.desk = begun(method)
        self.invalid = 0

    def act(self, data: st.DataObject) -> None:
        numbers = still_open(self.desk)
        if not numbers or data.draw(st.integers(0, 3)) == 0:
            self.command(data.draw(st.sampled_from(COMMANDS)))
            return
        number = data.draw(st.sampled_from(numbers))
        what = data.draw(st.integers(0, 3))
        if what == 0:
            self.tell(TrialValidated(number, data.draw(st.integers(0, LENGTH)), 0.5))
        elif what == 1:
            self.tell(TrialLengthReached(number, LENGTH, 0.5, closed=True))
        else:
            self.end(number, *data.draw(st.sampled_from(ENDS)))

    def end(self, number: int, status: Status, reason: str) -> None:
        if reason == ExitReason.INVALID_HP:
            self.invalid += 1
            reason = reason if self.invalid <= INVALID_MAX else ""
        message = TrialEnded(number, status, reason, life=self.desk.state.life)
        self.tell(message)
        before = self.desk.state
        # Doubled, and late from another life.
        self.desk.tell(message, TrialEnded(number, Status.ERROR, ExitReason.ERRORED, life=-1))
        assert self.desk.state == before

    def tell(self, message: object) -> None:
        self.desk.tell(message)
        check(self.desk)

    def command(self, command: object) -> None:
        before = self.desk.state
        try:
            self.tell(command)
        except Refused:
            assert self.desk.state == before

    def finish(self) -> None:
        """Every trial that is still to run completes."""
        while not self.desk.state.status.final:
            numbers = still_open(self.desk)
            if not numbers:
                self.tell(SearchContinued())
            for number in numbers:
                self.end(number, Status.COMPLETED, "")


def wanted(method: MethodPlan, rules: Rules, invalid: int) -> int:
    """Trials of a search in the end: one more for each that was invalid, where it is replaced."""
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
def test_the_books_agree_and_a_continued_search_makes_all_its_trials(
    method: MethodPlan, data: st.DataObject
) -> None:
    played = Played(method)
    for _ in range(data.draw(st.integers(0, 25))):
        played.act(data)
    played.finish()
    while played.desk.state.status is not Status.COMPLETED or _left_over(played.desk):
        before = played.desk.state
        played.command(ContinueRequested())
        if played.desk.state == before:
            break
        played.finish()
    desk = played.desk
    invalid = desk.state.search.tally.invalid
    assert desk.state.trials == wanted(method, method.rules, invalid)
    assert {summary.status for summary in summaries(desk)} == {Status.COMPLETED}


def _left_over(desk: Desk) -> bool:
    return any(summary.status != Status.COMPLETED for summary in summaries(desk))
