"""Metrics of lost work do not count for the best metric of a trial or an experiment."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.actors.messages.experiment import TrialMetricsDiscarded, TrialValidationReported
from control_plane.actors.messages.trial import (
    AllocationExited,
    ContainerStateReported,
    LengthReached,
    SlotsAssigned,
    ValidationReported,
)
from control_plane.actors.records import Place
from control_plane.actors.trial.checkpoints import CheckpointRecord
from control_plane.actors.trial.lost_work import (
    BEGINNING,
    NOTHING_LOST,
    STARTS_MAX,
    VALIDATIONS_MAX,
    add_start,
    last_valid_batch,
)
from control_plane.actors.trial.state import RunStart, TrialState
from tests.unit.actors.actor_harness import ActorHarness
from tests.unit.actors.sample_messages import (
    LENGTH,
    checkpoint_reported,
    experiment_submitted,
    random_plan,
    trial_created,
    trial_settings,
)

EXPERIMENT = "experiment#1"


def running_trial(**settings: Any) -> ActorHarness:
    actor = ActorHarness("trial#4")
    actor.deliver(trial_created(of=trial_settings(**settings)))
    return place(actor)


def place(actor: ActorHarness) -> ActorHarness:
    epoch = actor.state.epoch
    actor.deliver(SlotsAssigned(epoch, (Place("a", (0, 1)),)))
    actor.deliver(ContainerStateReported(epoch, "RUNNING"))
    return actor


def validate(actor: ActorHarness, *pairs: tuple[int, float | None]) -> None:
    for steps, metric in pairs:
        actor.deliver(ValidationReported(actor.state.epoch, steps, metric))


def restart(actor: ActorHarness, reason: str = "errored") -> None:
    actor.deliver(AllocationExited(actor.state.epoch, reason))
    place(actor)


def facts(state: TrialState) -> tuple[float | None, float | None, int | None]:
    return state.best_metric, state.metric, state.metric_steps


@pytest.mark.parametrize("order", [[(5, 0.5), (10, 1.0)], [(10, 1.0), (5, 0.5)]])
def test_restart_from_the_beginning_discards_every_validation(
    order: list[tuple[int, float | None]],
) -> None:
    actor = running_trial()
    validate(actor, *order)
    actor.deliver(AllocationExited(1, "errored"))
    # No metric is discarded before the next run has slots.
    assert actor.state.best_metric == 0.5
    actor.deliver(SlotsAssigned(2, (Place("a", (0, 1)),)))
    assert facts(actor.state) == (None, None, None)
    assert actor.messages_to(EXPERIMENT) == [TrialMetricsDiscarded(3, None)]
    assert (actor.state.run_starts, actor.state.discarded_from) == ((RunStart(2, BEGINNING),), 0)
    actor.deliver(ValidationReported(2, 5, 0.6))
    assert facts(actor.state) == (0.6, 0.6, 5)


def test_restart_from_a_checkpoint_keeps_validations_up_to_the_checkpoint() -> None:
    actor = running_trial()
    validate(actor, (20, 0.8), (40, 0.9))
    actor.deliver(checkpoint_reported(40))
    validate(actor, (60, 0.1), (30, 0.7))
    restart(actor, "lost")
    # 0.1 at batch 60 is lost. The best and the last validation up to batch 40 is the validation at
    # 30.
    assert facts(actor.state) == (0.7, 0.7, 30)
    assert actor.state.discarded_from == 41


def test_run_that_saved_all_work_loses_no_metrics() -> None:
    actor = running_trial()
    validate(actor, (40, 0.9))
    actor.deliver(checkpoint_reported(40))
    restart(actor, "preempted")
    assert facts(actor.state) == (0.9, 0.9, 40)
    assert actor.state.discarded_from is None
    assert actor.all_messages(TrialMetricsDiscarded) == []


def test_later_run_replaces_an_earlier_validation_of_the_same_batch() -> None:
    actor = running_trial()
    validate(actor, (5, 0.5), (10, 1.0))
    actor.deliver(checkpoint_reported(10))
    restart(actor)
    actor.deliver(ValidationReported(2, 5, 1.5))
    assert facts(actor.state)[0] == 1.0
    assert actor.messages_to(EXPERIMENT) == [
        TrialMetricsDiscarded(3, 1.0),
        TrialValidationReported(3, 5.0, 1.5),
    ]
    # A validation without a finite metric also replaces the earlier validation.
    actor.deliver(ValidationReported(2, 10, None))
    assert facts(actor.state)[0] == 1.5


def test_checkpoint_does_not_get_the_metric_of_a_lost_validation() -> None:
    actor = running_trial()
    validate(actor, (10, 0.5))
    restart(actor)
    message = replace(checkpoint_reported(10), epoch=2)
    path = message.checkpoint.path.replace("/4/1/", "/4/2/")
    actor.deliver(replace(message, checkpoint=replace(message.checkpoint, path=path)))
    (record,) = (actor.part(name) for name in actor.parts if name.startswith("checkpoint/"))
    assert isinstance(record, CheckpointRecord)
    assert record.metric is None


def test_failure_after_the_final_length_keeps_the_metrics() -> None:
    actor = running_trial()
    validate(actor, (LENGTH, 0.5))
    actor.deliver(LengthReached(1, LENGTH, 0.5))
    actor.state = replace(actor.state, closed=True)
    restart(actor)
    assert actor.state.best_metric == 0.5
    assert actor.state.run_starts == (RunStart(2, NOTHING_LOST),)


def test_trials_of_older_releases_keep_the_best_of_all_runs() -> None:
    actor = ActorHarness("trial#4")
    actor.deliver(trial_created(of=replace(trial_settings(), discards_lost_metrics=False)))
    place(actor)
    validate(actor, (5, 0.5))
    restart(actor)
    validate(actor, (5, 0.6))
    assert facts(actor.state) == (0.5, 0.6, 5)
    assert (actor.state.validations, actor.state.run_starts) == ((), ())


@given(
    smaller=st.booleans(),
    runs=st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=8),
            st.integers(-1, 9),
        ),
        min_size=1,
        max_size=4,
    ),
)
def test_best_metric_ignores_discarded_validations(
    smaller: bool, runs: list[tuple[list[tuple[int, int]], int]]
) -> None:
    """Use at most 24 validations, which a head can store, in any order of their batches."""
    actor = running_trial(smaller_is_better=smaller, max_restarts=99)
    expected: list[tuple[int, int, int]] = []
    for number, (validations, saved) in enumerate(runs):
        for steps, metric in validations[: VALIDATIONS_MAX // len(runs)]:
            actor.deliver(ValidationReported(actor.state.epoch, steps, float(metric)))
            expected = [one for one in expected if one[0] != steps or one[2] == number]
            expected.append((steps, metric, number))
        checkpoint = actor.state.checkpoint
        if saved > (checkpoint.steps_completed if checkpoint else -1):
            uuid = f"0123abcd-0000-4000-8000-{number:012d}"
            message = checkpoint_reported(saved)
            kept = replace(message.checkpoint, uuid=uuid, path=f"1/4/{actor.state.epoch}/{uuid}")
            actor.deliver(replace(message, epoch=actor.state.epoch, checkpoint=kept))
        restart(actor)
        steps = actor.state.checkpoint.steps_completed if actor.state.checkpoint else -1
        expected = [one for one in expected if one[0] <= steps]
        metrics = [metric for _, metric, _ in expected]
        best = (min if smaller else max)(metrics, default=None)
        assert actor.state.best_metric == best


def test_head_keeps_the_best_of_many_validations_at_every_batch() -> None:
    actor = running_trial()
    # The best metric of the batches up to 50 is 0.50 at batch 50; later metrics are worse.
    metrics = [(steps, 1.0 - steps / 100 if steps <= 50 else 1.0) for steps in range(90)]
    validate(actor, *metrics)
    assert len(actor.state.validations) == VALIDATIONS_MAX
    assert actor.state.best_metric == 0.5
    actor.deliver(checkpoint_reported(50))
    restart(actor)
    assert actor.state.best_metric == 0.5


def test_new_run_start_replaces_later_starts() -> None:
    starts = add_start((RunStart(2, 10), RunStart(3, 30)), RunStart(4, 20))
    assert starts == (RunStart(2, 10), RunStart(4, 20))
    assert [last_valid_batch(starts, epoch) for epoch in (1, 2, 3, 4)] == [10, 20, 20, float("inf")]
    many: tuple[RunStart, ...] = ()
    for epoch in range(2, 300):
        many = add_start(many, RunStart(epoch, epoch))
    assert len(many) == STARTS_MAX
    assert many[-1] == RunStart(299, 299)


def test_experiment_recomputes_the_best_trial() -> None:
    actor = ActorHarness(EXPERIMENT)
    actor.deliver(experiment_submitted(random_plan(3)))
    for number, metric in enumerate((0.3, 0.1, 0.2)):
        actor.deliver(TrialValidationReported(number, 10.0, metric))
    first = actor.state.best_trial - 1
    actor.deliver(TrialMetricsDiscarded(1, None))
    assert (actor.state.best_metric, actor.state.best_trial) == (0.2, first + 2)
    # A change of a trial other than the experiment's best has no effect.
    actor.deliver(TrialMetricsDiscarded(0, 0.9))
    assert (actor.state.best_metric, actor.state.best_trial) == (0.2, first + 2)
    actor.deliver(TrialMetricsDiscarded(2, 0.95))
    assert (actor.state.best_metric, actor.state.best_trial) == (0.9, first)
    for number in (0, 2):
        actor.deliver(TrialMetricsDiscarded(number, None))
    assert (actor.state.best_metric, actor.state.best_trial) == (None, None)
