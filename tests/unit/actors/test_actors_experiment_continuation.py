"""The continuation of an ended experiment: messages, counts and refusals."""

from dataclasses import replace

import pytest

from control_plane.actors.experiment.listing import decode_listing
from control_plane.actors.experiment.state import Definition
from control_plane.actors.job_row import decode_job
from control_plane.actors.messages.experiment import (
    ArchiveRequested,
    CancelRequested,
    ContinueRequested,
    KillRequested,
    PauseRequested,
    PoolChanged,
    SearchContinued,
    SettingsChanged,
    TrialEnded,
    TrialLengthReached,
    TrialProgressReported,
    TrialValidationReported,
)
from control_plane.actors.messages.pool import JobChanged
from control_plane.actors.messages.trial import (
    ExperimentStatusChanged,
    TrialContinued,
    TrialCreated,
)
from control_plane.actors.records import Status
from control_plane.actors.step import CommandRefused
from control_plane.evolve import evolve
from control_plane.searchers.era_rules import LENGTH_ERA, STEP_ERA, SearchRules
from control_plane.searchers.method import ENDLESS, ExitReason
from control_plane.searchers.methods.single import SinglePlan
from control_plane.searchers.search import SearchPlan
from tests.unit.actors.actor_harness import ActorHarness
from tests.unit.actors.sample_messages import (
    LENGTH,
    experiment_submitted,
    random_plan,
    single_plan,
    trial_settings,
)

CONTINUE = ContinueRequested(limits_open_trials=True)
COMPLETED, CANCELED, ERROR = Status.COMPLETED, Status.CANCELED, Status.ERROR


def experiment(plan: SearchPlan) -> ActorHarness:
    kind = plan.method.kind
    actor = ActorHarness("experiment#1")
    actor.deliver(experiment_submitted(plan, searcher=kind))
    return actor


def trial_completed(number: int, run_generation: int = 0) -> TrialEnded:
    return TrialEnded(number, COMPLETED, "", run_generation=run_generation)


def trial_errored(number: int, run_generation: int = 0) -> TrialEnded:
    return TrialEnded(number, ERROR, ExitReason.ERRORED, "out of luck", run_generation)


def trial_canceled(number: int, run_generation: int = 0) -> TrialEnded:
    return TrialEnded(number, CANCELED, ExitReason.USER_CANCELED, run_generation=run_generation)


def continued_trials(actor: ActorHarness) -> list[str]:
    return [send.to for send in actor.sent if isinstance(send.message, TrialContinued)]


def longer_plan(length: int) -> SearchPlan:
    return replace(single_plan(), method=SinglePlan(length, LENGTH_ERA))


def refusal_text(actor: ActorHarness, command: object) -> str:
    before, parts = actor.state, dict(actor.parts)
    with pytest.raises(CommandRefused) as refused:
        actor.deliver(command)
    assert refused.value.code == "conflict"
    assert (actor.state, actor.parts) == (before, parts)
    return str(refused.value)


def test_incomplete_trials_are_continued() -> None:
    actor = experiment(random_plan(3))
    actor.deliver(
        TrialValidationReported(1, 40.0, 0.5),
        trial_completed(0),
        trial_errored(1),
        trial_errored(2),
    )
    assert actor.state.status is COMPLETED
    assert actor.deliver(CONTINUE) == 1
    state = actor.state
    assert (state.status, state.ended_ms, state.message) == (Status.ACTIVE, None, "")
    assert continued_trials(actor) == ["trial#2", "trial#3"]
    assert actor.messages_to("trial#2") == [TrialContinued(1, trial_settings())]
    assert (state.trials, state.trials_open) == (3, 2)
    assert (state.trials_completed, state.trials_errored) == (1, 0)
    assert decode_listing(actor.row("experiments", "000000000001").body).state == "ACTIVE"


def test_continued_search_counts_as_if_no_trial_had_ended() -> None:
    actor = experiment(random_plan(3))
    actor.deliver(
        TrialValidationReported(1, 40.0, 0.5),
        trial_completed(0),
        trial_errored(1),
        trial_errored(2),
        CONTINUE,
    )
    tally = actor.state.search.tally
    assert (tally.requested, tally.created, tally.closed) == (3, 3, 1)
    assert (tally.exited, tally.errored, tally.open_units) == (0, 0, 40.0)
    assert not actor.state.search.shutdown
    # One of three trainings is done, and 40 of 100 batches of a second: 1.4 / 3.
    assert actor.state.progress == pytest.approx(1.4 / 3)


def test_continued_experiment_ends_again() -> None:
    actor = experiment(random_plan(2))
    actor.deliver(trial_errored(0), trial_errored(1))
    assert actor.state.status is ERROR
    actor.deliver(CONTINUE)
    actor.deliver(trial_completed(0, run_generation=1))
    assert actor.state.status is Status.ACTIVE
    actor.deliver(trial_errored(1, run_generation=1))
    assert actor.state.status is COMPLETED
    assert (actor.state.trials_completed, actor.state.trials_errored) == (1, 1)
    # A second continuation is possible: only the other trial is left.
    actor.deliver(CONTINUE)
    assert continued_trials(actor) == ["trial#2"]
    assert actor.state.run_generation == 2


def test_repeated_failure_of_all_trials_fails_the_search_again() -> None:
    actor = experiment(random_plan(2))
    actor.deliver(
        trial_errored(0), trial_errored(1), CONTINUE, trial_errored(0, 1), trial_errored(1, 1)
    )
    assert actor.state.status is ERROR
    assert actor.state.trials_errored == 2


def test_messages_of_an_earlier_run_generation_change_no_state() -> None:
    actor = experiment(random_plan(2))
    actor.deliver(trial_errored(0), trial_errored(1), CONTINUE)
    before = actor.state
    actor.deliver(trial_errored(0), trial_completed(1))
    assert actor.state == before


@pytest.mark.parametrize("rules", [STEP_ERA, LENGTH_ERA])
def test_continued_search_creates_the_rest_of_a_canceled_backlog(rules: SearchRules) -> None:
    # Two at a time in the length era; all at once in the step era, 48 to a commit.
    trials = 4 if rules is LENGTH_ERA else 50
    actor = experiment(random_plan(trials, concurrent=2, rules=rules))
    actor.deliver(CancelRequested())
    made = actor.state.trials
    assert made == (2 if rules is LENGTH_ERA else 48)
    actor.deliver(*(trial_canceled(number) for number in range(made)))
    assert actor.state.status is CANCELED
    actor.deliver(CONTINUE)
    assert len(continued_trials(actor)) == made
    while SearchContinued() in actor.messages_to(actor.address):
        actor.deliver(SearchContinued())
    for number in range(trials):
        actor.deliver(trial_completed(number, run_generation=1))
    assert (actor.state.status, actor.state.trials) == (COMPLETED, trials)
    lives = {created.run_generation for created in actor.all_messages(TrialCreated)[made:]}
    assert lives == {1}


def test_uncontinued_end_is_answered_by_the_continued_search() -> None:
    # Two of four trials run at a time. Trial 0 completes during the cancellation. The continued
    # search replaces trial 0 by trial 2.
    actor = experiment(random_plan(4, concurrent=2))
    actor.deliver(CancelRequested(), trial_completed(0), trial_canceled(1))
    assert actor.state.trials == 2
    actor.deliver(CONTINUE)
    assert continued_trials(actor) == ["trial#2"]
    assert [send.to for send in actor.sent if isinstance(send.message, TrialCreated)] == ["trial#3"]
    assert actor.state.trials_open == 2


def test_invalid_hyperparameters_counted_while_stopping_are_replaced_later() -> None:
    actor = experiment(random_plan(2, concurrent=2))
    actor.deliver(CancelRequested())
    actor.deliver(TrialEnded(0, COMPLETED, ExitReason.INVALID_HP), trial_canceled(1))
    actor.deliver(CONTINUE)
    # Two trials that count were asked for: trial 1 goes on, trial 2 replaces trial 0.
    assert continued_trials(actor) == ["trial#2"]
    assert actor.state.trials == 3
    actor.deliver(trial_completed(1, 1), trial_completed(2, 1))
    assert (actor.state.status, actor.state.trials) == (COMPLETED, 3)


def test_completed_search_cannot_be_continued() -> None:
    actor = experiment(random_plan(1))
    actor.deliver(trial_completed(0))
    assert refusal_text(actor, CONTINUE) == (
        "all trials of experiment 1 completed: there is nothing left to continue"
    )
    actor = experiment(single_plan())
    actor.deliver(trial_completed(0))
    assert "increase searcher.max_length" in refusal_text(actor, CONTINUE)


def test_lengthened_single_search_continues_after_completion() -> None:
    actor = experiment(single_plan())
    actor.deliver(
        TrialValidationReported(0, 100.0, 0.5), TrialLengthReached(0, LENGTH, 0.5, closed=True)
    )
    actor.deliver(trial_completed(0))
    actor.deliver(ContinueRequested('{"new": 1}', longer_plan(250), limits_open_trials=True))
    assert actor.messages_to("trial#1") == [TrialContinued(1, trial_settings(), 250)]
    assert (actor.state.trials_completed, actor.state.trials_open) == (0, 1)
    # 100 of 250 batches.
    assert actor.state.progress == pytest.approx(0.4)
    definition = actor.part("definition")
    assert isinstance(definition, Definition)
    assert (definition.config, definition.plan) == ('{"new": 1}', longer_plan(250))
    actor.deliver(
        TrialValidationReported(0, 250.0, 0.4), TrialLengthReached(0, 250, 0.4, closed=True)
    )
    actor.deliver(trial_completed(0, run_generation=1))
    assert (actor.state.status, actor.state.progress) == (COMPLETED, 1.0)
    assert actor.state.best_metric == 0.4


@pytest.mark.parametrize("reason", [ExitReason.INVALID_HP, ExitReason.USER_REQUESTED_STOP])
def test_early_exit_of_a_single_trial_is_undone_by_a_longer_length(
    reason: ExitReason,
) -> None:
    actor = experiment(single_plan())
    actor.deliver(TrialEnded(0, COMPLETED, reason))
    actor.deliver(ContinueRequested(plan=longer_plan(250), limits_open_trials=True))
    tally = actor.state.search.tally
    assert (tally.closed, tally.exited, tally.errored, tally.invalid) == (0, 0, 0, 0)


def test_new_max_restarts_apply_to_continued_and_new_trials() -> None:
    actor = experiment(random_plan(3, concurrent=1))
    actor.deliver(trial_errored(0), CancelRequested(), trial_canceled(1))
    actor.deliver(ContinueRequested("{}", max_restarts=9, limits_open_trials=True))
    continued = [send.message for send in actor.sent if isinstance(send.message, TrialContinued)]
    actor.deliver(trial_completed(0, 1))
    continued += [send.message for send in actor.sent if isinstance(send.message, TrialContinued)]
    assert [message.settings.max_restarts for message in continued] == [9, 9]
    actor.deliver(trial_completed(0, 1), trial_completed(1, 1))
    assert actor.all_messages(TrialCreated)[-1].settings.max_restarts == 9


def test_continued_experiment_writes_the_job_row_with_changed_settings() -> None:
    actor = experiment(random_plan(1))
    key = ("jobs#default", "000000000001")
    actor.deliver(trial_errored(0), SettingsChanged(max_slots=4, max_slots_given=True))
    assert actor.row(*key).revision == 0
    actor.deliver(CONTINUE)
    assert decode_job(actor.row(*key).body).max_slots == 4
    assert JobChanged(1) in actor.messages_to("pool#default")


def test_continued_trials_run_in_the_pool_of_the_experiment() -> None:
    actor = experiment(random_plan(1))
    actor.deliver(PoolChanged("spot"), trial_errored(0))
    actor.deliver(CONTINUE)
    [continued] = actor.all_messages(TrialContinued)
    assert continued.settings.pool == "spot"
    assert actor.row("jobs#spot", "000000000001").revision > 0


@pytest.mark.parametrize(
    "status",
    [s for s in Status if s not in (COMPLETED, CANCELED, ERROR, Status.DELETED)],
)
def test_only_an_ended_experiment_is_continued(status: Status) -> None:
    actor = experiment(random_plan(1))
    actor.deliver(trial_errored(0))
    actor.state = evolve(actor.state, status=status)
    assert refusal_text(actor, CONTINUE).startswith(
        f"experiment 1 is {status}: only an experiment in state"
    )


def test_archived_experiment_is_not_continued() -> None:
    actor = experiment(random_plan(1))
    actor.deliver(trial_errored(0), ArchiveRequested())
    assert refusal_text(actor, CONTINUE) == "experiment 1 is archived; unarchive it first"


def test_search_with_dependent_trials_is_not_continued() -> None:
    actor = experiment(random_plan(1))
    actor.deliver(trial_errored(0))
    actor.state = evolve(actor.state, searcher="adaptive_asha")
    assert "which cannot be continued; these searchers can: single, random, grid" in refusal_text(
        actor, CONTINUE
    )


def test_second_continuation_is_refused() -> None:
    actor = experiment(random_plan(1))
    actor.deliver(trial_errored(0), CONTINUE)
    assert refusal_text(actor, CONTINUE).startswith("experiment 1 is ACTIVE")


def test_completed_open_ended_trial_is_continued() -> None:
    actor = experiment(longer_plan(ENDLESS))
    actor.deliver(TrialProgressReported(0, 0.25))
    assert actor.state.progress == 0.25
    actor.deliver(trial_completed(0))
    assert actor.state.status is COMPLETED
    actor.deliver(CONTINUE)
    assert actor.state.status is Status.ACTIVE
    assert len(continued_trials(actor)) == 1
    actor.deliver(trial_completed(0, run_generation=1))
    assert actor.state.status is COMPLETED


def continued_addresses(actor: ActorHarness, number: int, end: TrialEnded) -> list[str]:
    """Deliver the end of trial `number`; return the addresses of continued and created trials."""
    actor.deliver(end)
    return [
        send.to for send in actor.sent if isinstance(send.message, TrialContinued | TrialCreated)
    ]


def all_failed(trials: int, concurrent: int) -> ActorHarness:
    """Create a random search, let all trials fail, and continue the search."""
    actor = experiment(random_plan(trials, concurrent=concurrent))
    for number in range(trials):
        actor.deliver(trial_errored(number))
    assert actor.state.status is ERROR
    actor.deliver(CONTINUE)
    return actor


def test_continued_trials_respect_the_limit_of_open_trials() -> None:
    actor = all_failed(5, concurrent=2)
    assert continued_trials(actor) == ["trial#1", "trial#2"]
    assert (actor.state.trials_open, actor.state.trials_errored) == (5, 0)
    # Each end lets the next trial continue, however the trial ended.
    assert continued_addresses(actor, 1, trial_completed(1, 1)) == ["trial#3"]
    assert continued_addresses(actor, 0, trial_errored(0, 1)) == ["trial#4"]
    assert continued_addresses(actor, 3, trial_completed(3, 1)) == ["trial#5"]
    assert continued_addresses(actor, 2, trial_completed(2, 1)) == []
    actor.deliver(trial_completed(4, 1))
    state = actor.state
    assert (state.status, state.trials) == (COMPLETED, 5)
    assert (state.trials_open, state.trials_completed, state.trials_errored) == (0, 4, 1)


def test_continued_search_creates_trials_after_the_last_waiting_trial() -> None:
    # Three of six trials exist at the cancellation. The limit is 2, so one trial waits.
    actor = experiment(random_plan(6, concurrent=2))
    actor.deliver(trial_errored(0), CancelRequested(), trial_canceled(1), trial_canceled(2))
    actor.deliver(CONTINUE)
    assert continued_trials(actor) == ["trial#1", "trial#2"]
    assert continued_addresses(actor, 0, trial_completed(0, 1)) == ["trial#3"]
    for number, created in ((1, ["trial#4"]), (2, ["trial#5"]), (3, ["trial#6"]), (4, []), (5, [])):
        assert continued_addresses(actor, number, trial_completed(number, 1)) == created
    assert (actor.state.status, actor.state.trials) == (COMPLETED, 6)


def test_refused_trial_is_replaced_when_a_place_is_free() -> None:
    actor = all_failed(2, concurrent=1)
    refused = TrialEnded(0, COMPLETED, ExitReason.INVALID_HP, run_generation=1)
    assert continued_addresses(actor, 0, refused) == ["trial#2"]
    assert continued_addresses(actor, 1, trial_completed(1, 1)) == ["trial#3"]
    actor.deliver(trial_completed(2, 1))
    assert (actor.state.status, actor.state.trials) == (COMPLETED, 3)


@pytest.mark.parametrize("command", [CancelRequested(), KillRequested()])
def test_waiting_trials_keep_their_status_when_the_experiment_is_stopped(command: object) -> None:
    actor = all_failed(4, concurrent=1)
    actor.deliver(trial_completed(0, 1), command)
    assert (actor.state.trials_open, actor.state.trials_errored) == (1, 2)
    actor.deliver(trial_canceled(1, 1))
    state = actor.state
    assert (state.status, state.trials_open) == (CANCELED, 0)
    assert (state.search.tally.closed, state.search.tally.errored) == (4, 2)
    # The trials wait again, and continue in order.
    actor.deliver(CONTINUE)
    assert continued_trials(actor) == ["trial#2"]
    assert continued_addresses(actor, 1, trial_completed(1, 2)) == ["trial#3"]
    assert continued_addresses(actor, 2, trial_completed(2, 2)) == ["trial#4"]
    actor.deliver(trial_completed(3, 2))
    assert (actor.state.status, actor.state.trials_completed) == (COMPLETED, 4)


def test_trial_that_continues_in_a_paused_experiment_is_paused() -> None:
    actor = all_failed(2, concurrent=1)
    actor.deliver(PauseRequested(), trial_completed(0, 1))
    assert actor.messages_to("trial#2")[-2:] == [
        TrialContinued(1, trial_settings()),
        ExperimentStatusChanged(Status.PAUSED),
    ]


def test_search_without_a_limit_continues_all_trials_together() -> None:
    assert len(continued_trials(all_failed(5, concurrent=0))) == 5


def test_continuation_of_an_earlier_version_opens_all_trials_together() -> None:
    actor = experiment(random_plan(3, concurrent=1))
    for number in range(3):
        actor.deliver(trial_errored(number))
    actor.deliver(ContinueRequested())
    assert len(continued_trials(actor)) == 3
