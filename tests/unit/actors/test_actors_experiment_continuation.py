"""An ended experiment goes on: who is told, what is counted, and what is refused."""

from dataclasses import replace

import pytest

from control_plane.actors.experiment_messages import (
    ArchiveRequested,
    CancelRequested,
    ContinueRequested,
    PoolChanged,
    SearchContinued,
    SettingsChanged,
    TrialEnded,
    TrialLengthReached,
    TrialValidated,
)
from control_plane.actors.experiment_state import Definition, read_listing
from control_plane.actors.jobs import read_job
from control_plane.actors.pool_messages import JobChanged
from control_plane.actors.records import Status
from control_plane.actors.step import Refused
from control_plane.actors.trial_messages import TrialContinued, TrialCreated
from control_plane.evolve import evolve
from control_plane.searchers.method import ExitReason
from control_plane.searchers.rules import LENGTH_ERA, STEP_ERA, Rules
from control_plane.searchers.search import SearchPlan
from control_plane.searchers.single import SinglePlan
from tests.unit.actors.desk import Desk
from tests.unit.actors.samples import LENGTH, random_plan, settings, single_plan, submitted

CONTINUE = ContinueRequested()
COMPLETED, CANCELED, ERROR = Status.COMPLETED, Status.CANCELED, Status.ERROR


def experiment(plan: SearchPlan) -> Desk:
    kind = plan.method.kind
    desk = Desk("experiment#1")
    desk.tell(submitted(plan, searcher=kind))
    return desk


def completed(number: int, life: int = 0) -> TrialEnded:
    return TrialEnded(number, COMPLETED, "", life=life)


def errored(number: int, life: int = 0) -> TrialEnded:
    return TrialEnded(number, ERROR, ExitReason.ERRORED, "out of luck", life)


def canceled(number: int, life: int = 0) -> TrialEnded:
    return TrialEnded(number, CANCELED, ExitReason.USER_CANCELED, life=life)


def continued(desk: Desk) -> list[str]:
    return [send.to for send in desk.sent if isinstance(send.message, TrialContinued)]


def longer(length: int) -> SearchPlan:
    return replace(single_plan(), method=SinglePlan(length, LENGTH_ERA))


def refusal(desk: Desk, command: object) -> str:
    before, parts = desk.state, dict(desk.parts)
    with pytest.raises(Refused) as refused:
        desk.tell(command)
    assert refused.value.code == "conflict"
    assert (desk.state, desk.parts) == (before, parts)
    return str(refused.value)


def test_trials_that_did_not_complete_go_on() -> None:
    desk = experiment(random_plan(3))
    desk.tell(TrialValidated(1, 40.0, 0.5), completed(0), errored(1), errored(2))
    assert desk.state.status is COMPLETED
    assert desk.tell(CONTINUE) == 1
    state = desk.state
    assert (state.status, state.ended_ms, state.message) == (Status.ACTIVE, None, "")
    assert continued(desk) == ["trial#2", "trial#3"]
    assert desk.sent_to("trial#2") == [TrialContinued(1, settings())]
    assert (state.trials, state.trials_open) == (3, 2)
    assert (state.trials_completed, state.trials_errored) == (1, 0)
    assert read_listing(desk.row("experiments", "000000000001").body).state == "ACTIVE"


def test_a_continued_search_counts_as_if_the_ends_had_never_been() -> None:
    desk = experiment(random_plan(3))
    desk.tell(TrialValidated(1, 40.0, 0.5), completed(0), errored(1), errored(2), CONTINUE)
    tally = desk.state.search.tally
    assert (tally.requested, tally.created, tally.closed) == (3, 3, 1)
    assert (tally.exited, tally.errored, tally.open_units) == (0, 0, 40.0)
    assert not desk.state.search.shutdown
    # One of three trainings is done, and 40 of 100 batches of another: 1.4 / 3.
    assert desk.state.progress == pytest.approx(1.4 / 3)


def test_a_continued_experiment_ends_again() -> None:
    desk = experiment(random_plan(2))
    desk.tell(errored(0), errored(1))
    assert desk.state.status is ERROR
    desk.tell(CONTINUE)
    desk.tell(completed(0, life=1))
    assert desk.state.status is Status.ACTIVE
    desk.tell(errored(1, life=1))
    assert desk.state.status is COMPLETED
    assert (desk.state.trials_completed, desk.state.trials_errored) == (1, 1)
    # And may go on again: only the other trial is left.
    desk.tell(CONTINUE)
    assert continued(desk) == ["trial#2"]
    assert desk.state.life == 2


def test_trials_that_fail_again_fail_the_search_again() -> None:
    desk = experiment(random_plan(2))
    desk.tell(errored(0), errored(1), CONTINUE, errored(0, 1), errored(1, 1))
    assert desk.state.status is ERROR
    assert desk.state.trials_errored == 2


def test_words_of_an_earlier_life_are_late() -> None:
    desk = experiment(random_plan(2))
    desk.tell(errored(0), errored(1), CONTINUE)
    before = desk.state
    desk.tell(errored(0), completed(1))
    assert desk.state == before


@pytest.mark.parametrize("rules", [STEP_ERA, LENGTH_ERA])
def test_a_canceled_search_creates_what_it_had_left_to_create(rules: Rules) -> None:
    # Two at a time in the length era; all at once in the step era, 48 to a commit.
    trials = 4 if rules is LENGTH_ERA else 50
    desk = experiment(random_plan(trials, concurrent=2, rules=rules))
    desk.tell(CancelRequested())
    made = desk.state.trials
    assert made == (2 if rules is LENGTH_ERA else 48)
    desk.tell(*(canceled(number) for number in range(made)))
    assert desk.state.status is CANCELED
    desk.tell(CONTINUE)
    assert len(continued(desk)) == made
    while SearchContinued() in desk.sent_to(desk.address):
        desk.tell(SearchContinued())
    for number in range(trials):
        desk.tell(completed(number, life=1))
    assert (desk.state.status, desk.state.trials) == (COMPLETED, trials)
    lives = {created.life for created in desk.ever_sent(TrialCreated)[made:]}
    assert lives == {1}


def test_an_end_that_the_search_was_not_asked_about_is_answered_when_it_goes_on() -> None:
    # Two of four at a time; trial 0 completes on its way out, so that trial 2 takes its place.
    desk = experiment(random_plan(4, concurrent=2))
    desk.tell(CancelRequested(), completed(0), canceled(1))
    assert desk.state.trials == 2
    desk.tell(CONTINUE)
    assert continued(desk) == ["trial#2"]
    assert [send.to for send in desk.sent if isinstance(send.message, TrialCreated)] == ["trial#3"]
    assert desk.state.trials_open == 2


def test_invalid_hyperparameters_of_a_stopping_search_are_replaced_when_it_goes_on() -> None:
    desk = experiment(random_plan(2, concurrent=2))
    desk.tell(CancelRequested())
    desk.tell(TrialEnded(0, COMPLETED, ExitReason.INVALID_HP), canceled(1))
    desk.tell(CONTINUE)
    # Two trials that count were asked for: trial 1 goes on, trial 2 replaces trial 0.
    assert continued(desk) == ["trial#2"]
    assert desk.state.trials == 3
    desk.tell(completed(1, 1), completed(2, 1))
    assert (desk.state.status, desk.state.trials) == (COMPLETED, 3)


def test_a_search_whose_trials_all_completed_has_nothing_to_go_on_with() -> None:
    desk = experiment(random_plan(1))
    desk.tell(completed(0))
    assert refusal(desk, CONTINUE) == (
        "all trials of experiment 1 completed: nothing is left to go on"
    )
    desk = experiment(single_plan())
    desk.tell(completed(0))
    assert "give it a greater length" in refusal(desk, CONTINUE)


def test_a_lengthened_single_search_goes_on_though_it_completed() -> None:
    desk = experiment(single_plan())
    desk.tell(TrialValidated(0, 100.0, 0.5), TrialLengthReached(0, LENGTH, 0.5, closed=True))
    desk.tell(completed(0))
    desk.tell(ContinueRequested(config='{"new": 1}', plan=longer(250)))
    assert desk.sent_to("trial#1") == [TrialContinued(1, settings(), 250)]
    assert (desk.state.trials_completed, desk.state.trials_open) == (0, 1)
    # 100 of 250 batches.
    assert desk.state.progress == pytest.approx(0.4)
    definition = desk.part("definition")
    assert isinstance(definition, Definition)
    assert (definition.config, definition.plan) == ('{"new": 1}', longer(250))
    desk.tell(TrialValidated(0, 250.0, 0.4), TrialLengthReached(0, 250, 0.4, closed=True))
    desk.tell(completed(0, life=1))
    assert (desk.state.status, desk.state.progress) == (COMPLETED, 1.0)
    assert desk.state.best_metric == 0.4


@pytest.mark.parametrize("reason", [ExitReason.INVALID_HP, ExitReason.USER_REQUESTED_STOP])
def test_a_single_trial_that_ended_early_is_forgiven_when_it_is_lengthened(
    reason: ExitReason,
) -> None:
    desk = experiment(single_plan())
    desk.tell(TrialEnded(0, COMPLETED, reason))
    desk.tell(ContinueRequested(plan=longer(250)))
    tally = desk.state.search.tally
    assert (tally.closed, tally.exited, tally.errored, tally.invalid) == (0, 0, 0, 0)


def test_more_restarts_reach_the_trials_that_go_on_and_those_to_come() -> None:
    desk = experiment(random_plan(3, concurrent=1))
    desk.tell(errored(0), CancelRequested(), canceled(1))
    desk.tell(ContinueRequested(config="{}", max_restarts=9))
    told = [send.message for send in desk.sent if isinstance(send.message, TrialContinued)]
    assert [message.settings.max_restarts for message in told] == [9, 9]
    desk.tell(completed(0, 1), completed(1, 1))
    assert desk.ever_sent(TrialCreated)[-1].settings.max_restarts == 9


def test_an_experiment_that_goes_on_has_its_job_again_as_it_was_changed() -> None:
    desk = experiment(random_plan(1))
    key = ("jobs#default", "000000000001")
    desk.tell(errored(0), SettingsChanged(max_slots=4, max_slots_given=True))
    assert desk.row(*key).revision == 0
    desk.tell(CONTINUE)
    assert read_job(desk.row(*key).body).max_slots == 4
    assert JobChanged(1) in desk.sent_to("pool#default")


def test_trials_that_go_on_run_in_the_pool_that_the_experiment_moved_to() -> None:
    desk = experiment(random_plan(1))
    desk.tell(PoolChanged("spot"), errored(0))
    desk.tell(CONTINUE)
    [told] = desk.ever_sent(TrialContinued)
    assert told.settings.pool == "spot"
    assert desk.row("jobs#spot", "000000000001").revision > 0


@pytest.mark.parametrize(
    "status",
    [s for s in Status if s not in (COMPLETED, CANCELED, ERROR, Status.DELETED)],
)
def test_only_an_ended_experiment_goes_on(status: Status) -> None:
    desk = experiment(random_plan(1))
    desk.tell(errored(0))
    desk.state = evolve(desk.state, status=status)
    assert refusal(desk, CONTINUE).startswith(f"experiment 1 is {status}: only one that is")


def test_an_archived_experiment_does_not_go_on() -> None:
    desk = experiment(random_plan(1))
    desk.tell(errored(0), ArchiveRequested())
    assert refusal(desk, CONTINUE) == "experiment 1 is archived; unarchive it first"


def test_a_search_whose_trials_depend_on_each_other_does_not_go_on() -> None:
    desk = experiment(random_plan(1))
    desk.tell(errored(0))
    desk.state = evolve(desk.state, searcher="adaptive_asha")
    assert "which cannot go on; these can: single, random, grid" in refusal(desk, CONTINUE)


def test_continuing_twice_is_refused_the_second_time() -> None:
    desk = experiment(random_plan(1))
    desk.tell(errored(0), CONTINUE)
    assert refusal(desk, CONTINUE).startswith("experiment 1 is ACTIVE")
