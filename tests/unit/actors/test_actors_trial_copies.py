"""Copies of trials: the checkpoint from the parent, and the copy's wait."""

from dataclasses import replace

from control_plane.actors.messages.experiment import (
    TrialEnded,
    TrialLengthReached,
    TrialValidationReported,
)
from control_plane.actors.messages.pool import SlotsRequested
from control_plane.actors.messages.trial import (
    CheckpointDeletionRequested,
    CheckpointHandedOver,
    CheckpointRequested,
    ExperimentStatusChanged,
    TrialCreated,
    WorkAssigned,
)
from control_plane.actors.pins import PINS, decode_pin
from control_plane.actors.records import Status
from control_plane.actors.step import ObservedRow, Send
from control_plane.evolve import evolve
from control_plane.searchers.era_rules import STEP_ERA
from control_plane.searchers.exploration import Exploration
from control_plane.searchers.methods.pbt import PopulationPlan
from control_plane.searchers.search import SearchPlan
from control_plane.searchers.space import Double, Group
from tests.unit.actors.actor_harness import ActorHarness
from tests.unit.actors.sample_messages import (
    LENGTH,
    checkpoint_reported,
    experiment_submitted,
    trial_created,
)

EXPERIMENT, POOL, CHILD = "experiment#1", "pool#default", "trial#9"
# Two trials, one of which is replaced after the first round.
PLAN = SearchPlan(
    PopulationPlan(10, 2, 2, 0.5, Exploration(0.0, 0.5), smaller_is_better=True, rules=STEP_ERA),
    Group({"lr": Double(0.1, 1.0)}),
    seed=7,
)


def parent(rows: dict[tuple[str, str], ObservedRow] | None = None) -> ActorHarness:
    """Create trial 4 with a checkpoint at the trial's length."""
    actor = ActorHarness("trial#4", rows)
    actor.deliver(trial_created())
    actor.deliver(checkpoint_reported(LENGTH))
    return actor


def child() -> ActorHarness:
    actor = ActorHarness(CHILD)
    copy = replace(trial_created(closed=False), trial_id=9, number=8, parent_id=4)
    actor.deliver(copy)
    return actor


def test_copy_names_the_parent() -> None:
    actor = ActorHarness(EXPERIMENT)
    actor.deliver(experiment_submitted(PLAN))
    for number, metric in enumerate((0.5, 0.7)):
        actor.deliver(TrialValidationReported(number, 10.0, metric))
        actor.deliver(TrialLengthReached(number, 10, metric, closed=False))
    assert actor.messages_to("trial#1") == [WorkAssigned(20, closed=False)]
    assert actor.messages_to("trial#2") == [WorkAssigned(None, closed=True)]
    (copy,) = (one for one in actor.messages_to("trial#3") if isinstance(one, TrialCreated))
    assert (copy.number, copy.length, copy.parent_id) == (2, 10, 1)


def test_copy_requests_a_checkpoint_from_the_parent() -> None:
    assert child().sent == [Send("trial#4", CheckpointRequested(9))]


def test_parent_hands_over_and_pins_the_latest_checkpoint() -> None:
    actor = parent()
    actor.deliver(CheckpointRequested(9))
    checkpoint = actor.state.checkpoint
    assert actor.messages_to(CHILD) == [CheckpointHandedOver(4, checkpoint)]
    assert decode_pin(actor.rows[PINS, checkpoint.uuid].body).experiments == (1,)
    # The pin keeps the checkpoint until the experiment is deleted.
    assert actor.deliver(CheckpointDeletionRequested((checkpoint.uuid,))) == ()
    actor.state = evolve(actor.state, status=Status.COMPLETED)
    assert actor.deliver(CheckpointDeletionRequested((checkpoint.uuid,))) == ()
    assert actor.deliver(
        CheckpointDeletionRequested((checkpoint.uuid,), deletes_experiment=True)
    ) == (checkpoint.uuid,)


def test_ended_parent_hands_over_the_checkpoint() -> None:
    actor = parent()
    actor.deliver(ExperimentStatusChanged(Status.STOPPING_ERROR))
    actor.deliver(CheckpointRequested(9))
    assert actor.messages_to(CHILD) == [CheckpointHandedOver(4, actor.state.checkpoint)]


def test_copy_requests_slots_after_receiving_the_checkpoint() -> None:
    actor = child()
    checkpoint = parent().state.checkpoint
    actor.deliver(CheckpointHandedOver(4, checkpoint))
    assert isinstance(actor.messages_to(POOL)[0], SlotsRequested)
    assert actor.state.inherited_checkpoint == checkpoint
    # The copy counts batches from 0.
    assert (actor.state.steps, actor.state.checkpoint) == (0, None)
    actor.deliver(CheckpointHandedOver(4, checkpoint))
    assert actor.sent == []


def test_waiting_copy_that_is_paused_starts_after_activation() -> None:
    actor = child()
    actor.deliver(ExperimentStatusChanged(Status.PAUSED))
    actor.deliver(CheckpointHandedOver(4, parent().state.checkpoint))
    assert actor.sent == []
    actor.deliver(ExperimentStatusChanged(Status.ACTIVE))
    assert isinstance(actor.messages_to(POOL)[0], SlotsRequested)


def test_waiting_copy_that_is_canceled_ends() -> None:
    actor = child()
    actor.deliver(ExperimentStatusChanged(Status.STOPPING_CANCELED))
    assert isinstance(actor.messages_to(EXPERIMENT)[0], TrialEnded)
    actor.deliver(CheckpointHandedOver(4, None))
    assert actor.sent == []


def test_parent_without_a_checkpoint_ends_the_search() -> None:
    actor = ActorHarness("trial#4")
    actor.deliver(trial_created())
    actor.deliver(CheckpointRequested(9))
    assert actor.messages_to(CHILD) == [CheckpointHandedOver(4, None)]
    copy = child()
    copy.deliver(CheckpointHandedOver(4, None))
    (message,) = copy.messages_to(EXPERIMENT)
    assert isinstance(message, TrialLengthReached)
    assert message.missing_metric_reason.startswith(
        "it is to begin as a copy of trial 4, which has no checkpoint"
    )


def test_fallback_of_the_parent_answers_without_a_checkpoint() -> None:
    actor = parent()
    actor.deliver_dead_letter(CheckpointRequested(9))
    assert actor.messages_to(CHILD) == [CheckpointHandedOver(4, None)]
