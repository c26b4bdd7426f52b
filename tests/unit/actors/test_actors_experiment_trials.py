"""The experiment's trials, trial ids, summaries, best metric and progress."""

from dataclasses import replace

import pytest

from control_plane.actors.experiment.refusals import REFUSALS_REPORTED_MIN
from control_plane.actors.experiment.search import CREATE_MAX
from control_plane.actors.experiment.trial_summaries import (
    SUMMARIES_PER_PART,
    Summaries,
    TrialSummary,
)
from control_plane.actors.messages.experiment import (
    CancelRequested,
    SearchContinued,
    TrialEnded,
    TrialLengthReached,
    TrialValidationReported,
)
from control_plane.actors.messages.trial import TrialCreated, WorkAssigned
from control_plane.actors.records import Status
from control_plane.actors.step import ObservedRow
from control_plane.evolve import evolve
from control_plane.searchers import search
from control_plane.searchers.era_rules import LENGTH_ERA, STEP_ERA
from control_plane.searchers.halving.asynchronous import HalvingPlan
from control_plane.searchers.method import Close, CreateTrial, Event, ExitReason, Shutdown, TrainTo
from control_plane.searchers.randomness import Generator
from control_plane.searchers.search import (
    SearchPlan,
    SearchState,
    SearchStep,
    TrialOperation,
)
from control_plane.searchers.space import Double, Group
from tests.unit.actors.actor_harness import ActorHarness
from tests.unit.actors.sample_messages import LENGTH, experiment_submitted, random_plan

ENDED = Status.COMPLETED


def experiment(plan: SearchPlan, *, smaller_is_better: bool = True) -> ActorHarness:
    actor = ActorHarness("experiment#1")
    actor.deliver(experiment_submitted(plan, smaller_is_better=smaller_is_better))
    return actor


def deliver_own_messages(actor: ActorHarness) -> ActorHarness:
    """Deliver the messages that the experiment sends to itself."""
    while SearchContinued() in actor.messages_to(actor.address):
        actor.deliver(SearchContinued())
    return actor


def summaries(actor: ActorHarness, part: int = 0) -> Summaries:
    stored = actor.part(f"trials/{part}")
    assert isinstance(stored, Summaries)
    return stored


def test_trials_are_created_in_order_with_the_draws_of_the_search() -> None:
    actor = experiment(random_plan(3))
    created = actor.all_messages(TrialCreated)
    assert [(c.trial_id, c.number, c.length, c.closed) for c in created] == [
        (1, 0, LENGTH, True),
        (2, 1, LENGTH, True),
        (3, 2, LENGTH, True),
    ]
    assert len({c.seed for c in created}) == 3
    assert len({c.hparams["lr"] for c in created}) == 3
    assert [send.to for send in actor.sent] == ["trial#1", "trial#2", "trial#3", "pool#default"]


def test_excess_trials_are_created_in_the_next_commit() -> None:
    # 100 = 48 + 48 + 4
    actor = experiment(random_plan(100))
    counts = [len(actor.all_messages(TrialCreated))]
    while SearchContinued() in actor.messages_to("experiment#1"):
        actor.deliver(SearchContinued())
        counts.append(len(actor.all_messages(TrialCreated)))
    assert CREATE_MAX == 48
    assert counts == [48, 96, 100]
    assert actor.state.trials == actor.state.trials_open == 100


def test_continued_backlog_adds_reasons() -> None:
    actor = experiment(random_plan(100))
    actor.deliver(SearchContinued())
    assert actor.reasons == ["trials created: 48"]
    # Of 100 trials at length 1, one is promoted, and the other 99 are closed: 48 + 48 + 3.
    rungs = HalvingPlan(2, 2, 100.0, 100, 100, smaller_is_better=True, rules=LENGTH_ERA)
    actor = deliver_own_messages(experiment(replace(random_plan(1), method=rungs)))
    for number in range(100):
        actor.deliver(TrialLengthReached(number, 1, float(number), closed=False))
    reasons = []
    while SearchContinued() in actor.messages_to(actor.address):
        actor.deliver(SearchContinued())
        reasons += actor.reasons
    assert reasons == ["trials closed: 48", "trials closed: 3"]


def test_backlog_draws_the_same_values_as_a_single_commit() -> None:
    slow = deliver_own_messages(experiment(random_plan(100))).all_messages(TrialCreated)
    generator = Generator.from_seed(7)
    plan = random_plan(100)
    begun = search.begin_search(plan)
    at_once = search.expand_creates(plan, begun.state, generator, 100).operations
    assert [(c.seed, c.hparams, c.request_id) for c in slow] == [
        (c.seed, c.hparams, c.request_id) for c in at_once if isinstance(c, CreateTrial)
    ]


def test_backlog_is_continued_by_a_message_at_a_time() -> None:
    # A SearchContinued is queued when trial 0 ends. The end creates 48 trials and sends no other.
    actor = experiment(random_plan(150))
    assert actor.messages_to("experiment#1") == [SearchContinued()]
    actor.deliver(TrialEnded(0, ENDED, ""))
    assert actor.messages_to("experiment#1") == []
    assert actor.state.trials == 96
    actor.deliver(SearchContinued())
    assert actor.messages_to("experiment#1") == [SearchContinued()]
    actor.deliver(SearchContinued())
    assert actor.state.trials == 150


def test_continuation_without_a_backlog_changes_no_state() -> None:
    actor = experiment(random_plan(2))
    before = actor.state
    actor.deliver(SearchContinued())
    assert actor.state == before
    assert actor.sent == []


def test_canceled_experiment_creates_no_trials_of_the_backlog() -> None:
    actor = experiment(random_plan(100))
    actor.deliver(CancelRequested())
    actor.deliver(SearchContinued())
    assert len(actor.all_messages(TrialCreated)) == 48
    assert actor.sent == []


def test_summaries_are_stored_in_parts_of_64() -> None:
    actor = deliver_own_messages(experiment(random_plan(150)))
    assert SUMMARIES_PER_PART == 64
    # 150 = 64 + 64 + 22
    assert [len(summaries(actor, part).trials) for part in range(3)] == [64, 64, 22]
    assert summaries(actor, 2).trials[0].trial_id == 129


def test_event_writes_only_the_part_of_the_trial() -> None:
    actor = deliver_own_messages(experiment(random_plan(150)))
    actor.deliver(TrialValidationReported(130, 50.0, 0.5))
    assert actor.parts_written == ["trials/2"]
    assert summaries(actor, 2).trials[2] == TrialSummary(131, "", 50.0, 0.5)


def test_end_and_cancel_reach_trials_of_later_parts() -> None:
    actor = deliver_own_messages(experiment(random_plan(150)))
    actor.deliver(TrialEnded(149, ENDED, ""))
    actor.deliver(CancelRequested())
    # Ids are numbers + 1: all of 1 to 149 are open.
    assert [send.to for send in actor.sent] == [f"trial#{n}" for n in range(1, 150)]


def test_repeated_end_of_a_trial_counts_once() -> None:
    actor = experiment(random_plan(3))
    actor.deliver(TrialEnded(0, ENDED, ""))
    before = actor.state
    actor.deliver(TrialEnded(0, Status.ERROR, ExitReason.ERRORED, "late"))
    assert actor.state == before
    assert (before.trials_open, before.trials_completed, before.trials_errored) == (2, 1, 0)


@pytest.mark.parametrize("number", [3, 64, 10_000, -1])
def test_message_about_an_unknown_trial_changes_no_state(number: int) -> None:
    actor = experiment(random_plan(3))
    before = actor.state
    for message in (
        TrialEnded(number, ENDED, ""),
        TrialValidationReported(number, 1.0, 0.5),
        TrialLengthReached(number, LENGTH, 0.5, closed=False),
    ):
        actor.deliver(message)
        assert actor.state == before
        assert actor.sent == []


def test_validation_of_an_ended_trial_changes_no_state() -> None:
    actor = experiment(random_plan(2))
    actor.deliver(TrialEnded(0, ENDED, ""))
    actor.deliver(
        TrialValidationReported(0, 90.0, 0.1), TrialLengthReached(0, LENGTH, 0.1, closed=False)
    )
    assert actor.state.best_metric is None
    assert actor.sent == []


@pytest.mark.parametrize(
    ("smaller_is_better", "best", "best_trial", "of_trial_0"),
    [(True, 0.2, 2, 0.4), (False, 0.6, 1, 0.6)],
)
def test_best_metric_follows_the_sign(
    smaller_is_better: bool, best: float, best_trial: int, of_trial_0: float
) -> None:
    actor = experiment(random_plan(3), smaller_is_better=smaller_is_better)
    actor.deliver(TrialValidationReported(0, 10.0, 0.6))
    actor.deliver(TrialValidationReported(0, 20.0, 0.4))
    actor.deliver(TrialValidationReported(1, 10.0, 0.2))
    assert (actor.state.best_metric, actor.state.best_trial) == (best, best_trial)
    assert summaries(actor).trials[0].metric == of_trial_0


def test_first_of_equal_metrics_stays_the_best() -> None:
    actor = experiment(random_plan(2))
    actor.deliver(TrialValidationReported(1, 10.0, 0.5), TrialValidationReported(0, 10.0, 0.5))
    assert actor.state.best_trial == 2


def test_non_finite_metric_is_never_the_best() -> None:
    actor = experiment(random_plan(2))
    actor.deliver(TrialValidationReported(0, 10.0, None))
    assert actor.state.best_metric is None
    actor.deliver(TrialValidationReported(0, 20.0, 0.5), TrialValidationReported(0, 30.0, None))
    assert actor.state.best_metric == 0.5
    assert summaries(actor).trials[0] == TrialSummary(1, "", 30.0, 0.5)


def test_stopping_experiment_updates_the_best_metric() -> None:
    actor = experiment(random_plan(2))
    actor.deliver(CancelRequested())
    actor.deliver(TrialValidationReported(0, 10.0, 0.5))
    assert actor.state.best_metric == 0.5


def test_progress_is_the_share_of_all_training() -> None:
    # 4 trials of 100 units: 50 / 400, then 100 for a closed trial + 50 of an open one / 400.
    actor = experiment(random_plan(4))
    actor.deliver(TrialValidationReported(0, 50.0, 0.5))
    assert actor.state.progress == 0.125
    actor.deliver(TrialValidationReported(1, 50.0, 0.5), TrialEnded(0, ENDED, ""))
    assert actor.state.progress == 0.375


def test_progress_never_decreases() -> None:
    # Trial 0 is found invalid after 50 of 400 units: the work no longer counts, but 0.125 stays.
    actor = experiment(random_plan(4))
    actor.deliver(TrialValidationReported(0, 50.0, 0.5))
    actor.deliver(TrialEnded(0, ENDED, ExitReason.INVALID_HP))
    assert actor.state.progress == 0.125


def test_failed_search_does_not_complete_the_progress() -> None:
    # The only trial failed after 80 of 100 units, which ends the search.
    actor = experiment(random_plan(1))
    actor.deliver(TrialValidationReported(0, 80.0, 0.5))
    actor.deliver(TrialEnded(0, Status.ERROR, ExitReason.ERRORED))
    assert actor.state.status is Status.ERROR
    assert actor.state.progress == 0.8


def test_repeated_work_after_a_rollback_is_no_progress() -> None:
    actor = experiment(random_plan(1))
    actor.deliver(TrialValidationReported(0, 80.0, 0.5))
    actor.deliver(TrialValidationReported(0, 60.0, 0.4))
    assert actor.state.progress == 0.8
    assert summaries(actor).trials[0].units == 80.0
    assert actor.state.best_metric == 0.4


def test_invalid_trial_is_replaced_beyond_max_trials() -> None:
    actor = experiment(random_plan(2))
    actor.deliver(TrialEnded(1, ENDED, ExitReason.INVALID_HP))
    assert [created.number for created in actor.all_messages(TrialCreated)] == [0, 1, 2]
    assert actor.state.trials_open == 2


def test_message_reports_that_all_trials_are_invalid() -> None:
    actor = experiment(random_plan(2))
    for number in range(REFUSALS_REPORTED_MIN - 1):
        actor.deliver(TrialEnded(number, ENDED, ExitReason.INVALID_HP))
    assert actor.state.message == ""
    actor.deliver(TrialEnded(REFUSALS_REPORTED_MIN - 1, ENDED, ExitReason.INVALID_HP))
    assert actor.state.message.startswith("20 trials that have ended, all of them, refused")
    assert "others take their place" in actor.state.message
    assert actor.state.trials == 2 + REFUSALS_REPORTED_MIN
    actor.deliver(TrialEnded(REFUSALS_REPORTED_MIN, ENDED, ExitReason.INVALID_HP))
    assert actor.state.message.startswith("21 trials")
    actor.deliver(TrialEnded(REFUSALS_REPORTED_MIN + 1, ENDED, ""))
    assert actor.state.message == ""


def test_message_reports_that_invalid_trials_are_not_replaced() -> None:
    actor = experiment(random_plan(REFUSALS_REPORTED_MIN + 1, rules=STEP_ERA))
    for number in range(REFUSALS_REPORTED_MIN):
        actor.deliver(TrialEnded(number, ENDED, ExitReason.INVALID_HP))
    assert actor.state.trials == REFUSALS_REPORTED_MIN + 1
    assert "the search replaces none" in actor.state.message


def test_concurrent_trials_are_replaced_after_they_end() -> None:
    actor = experiment(random_plan(4, concurrent=2))
    assert actor.state.trials == 2
    actor.deliver(TrialEnded(0, ENDED, ""), TrialEnded(1, Status.ERROR, ExitReason.ERRORED))
    assert actor.state.trials == 4
    assert actor.state.trials_open == 2


def test_step_era_creates_every_trial_at_once() -> None:
    assert experiment(random_plan(4, concurrent=2, rules=STEP_ERA)).state.trials == 4


def test_small_experiments_have_consecutive_ids() -> None:
    rows: dict[tuple[str, str], ObservedRow] = {}
    one, two = ActorHarness("experiment#1", rows), ActorHarness("experiment#2", rows)
    for number, actor in enumerate((one, two), 1):
        submitted = experiment_submitted(random_plan(30, concurrent=16), experiment_id=number)
        actor.deliver(replace(submitted, has_growing_id_blocks=True))
    one.deliver(TrialEnded(0, ENDED, ""))
    two.deliver(TrialEnded(0, ENDED, ""))
    # 16 each at first. An eighth of 16 is reserved for the next id, and a further block after that.
    assert [message.trial_id for message in one.all_messages(TrialCreated)] == [*range(1, 17), 33]
    assert [message.trial_id for message in two.all_messages(TrialCreated)] == [*range(17, 33), 35]


def test_experiments_of_an_older_release_never_share_a_trial_id() -> None:
    # Blocks of 64: the first experiment takes 1..64 and uses 3, the second begins at 65.
    rows: dict[tuple[str, str], ObservedRow] = {}
    one, two = ActorHarness("experiment#1", rows), ActorHarness("experiment#2", rows)
    one.deliver(experiment_submitted(random_plan(3)))
    two.deliver(experiment_submitted(random_plan(2), experiment_id=2))
    assert [created.trial_id for created in two.all_messages(TrialCreated)] == [65, 66]
    one.deliver(TrialEnded(0, ENDED, ExitReason.INVALID_HP))
    assert [created.trial_id for created in one.all_messages(TrialCreated)] == [1, 2, 3, 4]


def test_generator_key_is_written_once_in_624_draws() -> None:
    # The key is twisted with the first draw. A trial draws 2 + 4 + 1 words: 2 more fit easily.
    actor = experiment(random_plan(4, concurrent=2))
    actor.deliver(TrialEnded(0, ENDED, ""))
    assert "generator" not in actor.parts_written
    assert actor.state.trials == 3


def script_next_answer(monkeypatch: pytest.MonkeyPatch, *operations: TrialOperation) -> None:
    """Let the search answer the next event with these operations, as a method with rungs would."""

    def handle(
        plan: SearchPlan, state: SearchState, generator: Generator, event: Event, *_: object
    ) -> SearchStep:
        shutdown = any(isinstance(operation, Shutdown) for operation in operations)
        return SearchStep(evolve(state, shutdown=shutdown), operations, more=False)

    monkeypatch.setattr(search, "handle_event", handle)


def test_promoted_trial_gets_a_length_and_the_reporter_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    actor = experiment(random_plan(2))
    script_next_answer(monkeypatch, TrainTo(1, 400))
    actor.deliver(TrialLengthReached(0, LENGTH, 0.5, closed=False))
    assert actor.messages_to("trial#1") == [WorkAssigned(None, False)]
    assert actor.messages_to("trial#2") == [WorkAssigned(400, False)]


def test_last_length_is_assigned_in_a_single_message(monkeypatch: pytest.MonkeyPatch) -> None:
    actor = experiment(random_plan(2))
    script_next_answer(monkeypatch, TrainTo(0, 400), Close(0), Close(1))
    actor.deliver(TrialLengthReached(0, LENGTH, 0.5, closed=False))
    assert actor.messages_to("trial#1") == [WorkAssigned(400, True)]
    assert actor.messages_to("trial#2") == [WorkAssigned(None, True)]


def test_ended_trial_gets_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    actor = experiment(random_plan(3))
    actor.deliver(TrialEnded(1, ENDED, ""))
    script_next_answer(monkeypatch, TrainTo(1, 400), Close(77))
    actor.deliver(TrialLengthReached(0, LENGTH, 0.5, closed=True))
    assert actor.sent == []


@pytest.mark.parametrize(
    ("failure", "stopping"),
    [(False, Status.STOPPING_COMPLETED), (True, Status.STOPPING_ERROR)],
)
def test_search_may_shut_down_while_trials_are_open(
    failure: bool, stopping: Status, monkeypatch: pytest.MonkeyPatch
) -> None:
    actor = experiment(random_plan(2))
    script_next_answer(monkeypatch, Shutdown(failure))
    actor.deliver(TrialLengthReached(0, LENGTH, 0.5, closed=True))
    assert actor.state.status is stopping
    assert [send.to for send in actor.sent] == ["trial#1", "trial#2"]


# Rungs at times 1 and 2, for two trials at once.
TIMED = SearchPlan(
    HalvingPlan(2, 2, 2.0, 3, 2, True, LENGTH_ERA, stops=True, by_time=True),
    Group({"lr": Double(0.1, 1.0)}),
    seed=7,
)


def test_validation_may_stop_the_trial() -> None:
    actor = experiment(TIMED)
    actor.deliver(TrialValidationReported(0, 10.0, 0.5, time=1.0))
    assert actor.sent == []
    actor.deliver(TrialValidationReported(1, 10.0, 0.7, time=1.5))
    assert actor.messages_to("trial#2") == [WorkAssigned(None, closed=True, stopped=True)]
    assert [one.trial_id for one in actor.all_messages(TrialCreated)] == [1, 2, 3]
    # The same report, after a failure.
    actor.deliver(TrialValidationReported(1, 10.0, 0.7, time=1.5))
    assert actor.sent == []


def test_non_finite_metric_is_the_worst_of_the_rung() -> None:
    actor = experiment(TIMED)
    actor.deliver(
        TrialValidationReported(0, 10.0, 5.0, time=1.0),
        TrialValidationReported(1, 10.0, None, time=1.0),
    )
    assert actor.messages_to("trial#2") == [WorkAssigned(None, closed=True, stopped=True)]


def test_validation_without_a_required_metric_ends_the_search() -> None:
    actor = experiment(TIMED)
    actor.deliver(
        TrialValidationReported(
            1, 10.0, None, missing_metric_reason="the validation at batch 10 lacks it"
        )
    )
    assert actor.state.status is Status.STOPPING_ERROR
    assert actor.state.message == "trial 2: the validation at batch 10 lacks it"
