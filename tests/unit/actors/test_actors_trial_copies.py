"""Copies of trials: the checkpoint that the parent hands over, and what waits for it."""

from dataclasses import replace

from control_plane.actors.experiment_messages import (
    TrialEnded,
    TrialLengthReached,
    TrialValidated,
)
from control_plane.actors.pool_messages import SlotsRequested
from control_plane.actors.records import Status
from control_plane.actors.step import RowSeen, Send
from control_plane.actors.trial_checkpoints import PINS, read_pin
from control_plane.actors.trial_messages import (
    CheckpointHandedOver,
    CheckpointsUnwanted,
    CheckpointWanted,
    ExperimentStatusChanged,
    TrialCreated,
    WorkAssigned,
)
from control_plane.evolve import evolve
from control_plane.searchers.exploration import Exploration
from control_plane.searchers.population import PopulationPlan
from control_plane.searchers.rules import STEP_ERA
from control_plane.searchers.search import SearchPlan
from control_plane.searchers.space import Double, Group
from tests.unit.actors.desk import Desk
from tests.unit.actors.samples import (
    LENGTH,
    checkpoint_reported,
    created,
    submitted,
)

EXPERIMENT, POOL, CHILD = "experiment#1", "pool#default", "trial#9"
# Two trials, one of which is replaced after the first round.
PLAN = SearchPlan(
    PopulationPlan(10, 2, 2, 0.5, Exploration(0.0, 0.5), smaller_is_better=True, rules=STEP_ERA),
    Group({"lr": Double(0.1, 1.0)}),
    seed=7,
)


def parent(rows: dict[tuple[str, str], RowSeen] | None = None) -> Desk:
    """Trial 4, with a checkpoint at its length."""
    desk = Desk("trial#4", rows)
    desk.tell(created())
    desk.tell(checkpoint_reported(LENGTH))
    return desk


def child() -> Desk:
    desk = Desk(CHILD)
    copy = replace(created(closed=False), trial_id=9, number=8, parent_id=4)
    desk.tell(copy)
    return desk


def test_a_copy_is_told_whose_it_is() -> None:
    desk = Desk(EXPERIMENT)
    desk.tell(submitted(PLAN))
    for number, metric in enumerate((0.5, 0.7)):
        desk.tell(TrialValidated(number, 10.0, metric))
        desk.tell(TrialLengthReached(number, 10, metric, closed=False))
    assert desk.sent_to("trial#1") == [WorkAssigned(20, closed=False)]
    assert desk.sent_to("trial#2") == [WorkAssigned(None, closed=True)]
    (copy,) = (one for one in desk.sent_to("trial#3") if isinstance(one, TrialCreated))
    assert (copy.number, copy.length, copy.parent_id) == (2, 10, 1)


def test_a_copy_asks_its_original_for_a_checkpoint() -> None:
    assert child().sent == [Send("trial#4", CheckpointWanted(9))]


def test_a_trial_hands_its_latest_checkpoint_over_and_pins_it() -> None:
    desk = parent()
    desk.tell(CheckpointWanted(9))
    checkpoint = desk.state.checkpoint
    assert desk.sent_to(CHILD) == [CheckpointHandedOver(4, checkpoint)]
    assert read_pin(desk.rows[PINS, checkpoint.uuid].body).by == (1,)
    # It stays while there is the experiment, and goes with it.
    assert desk.tell(CheckpointsUnwanted((checkpoint.uuid,))) == ()
    desk.state = evolve(desk.state, status=Status.COMPLETED)
    assert desk.tell(CheckpointsUnwanted((checkpoint.uuid,))) == ()
    assert desk.tell(CheckpointsUnwanted((checkpoint.uuid,), whole=True)) == (checkpoint.uuid,)


def test_a_trial_that_has_ended_still_hands_it_over() -> None:
    desk = parent()
    desk.tell(ExperimentStatusChanged(Status.STOPPING_ERROR))
    desk.tell(CheckpointWanted(9))
    assert desk.sent_to(CHILD) == [CheckpointHandedOver(4, desk.state.checkpoint)]


def test_a_copy_asks_for_slots_when_it_has_its_checkpoint() -> None:
    desk = child()
    checkpoint = parent().state.checkpoint
    desk.tell(CheckpointHandedOver(4, checkpoint))
    assert isinstance(desk.sent_to(POOL)[0], SlotsRequested)
    assert desk.state.inherited == checkpoint
    # Its own count begins anew.
    assert (desk.state.steps, desk.state.checkpoint) == (0, None)
    desk.tell(CheckpointHandedOver(4, checkpoint))
    assert desk.sent == []


def test_a_copy_that_is_paused_while_it_waits_starts_when_it_is_activated() -> None:
    desk = child()
    desk.tell(ExperimentStatusChanged(Status.PAUSED))
    desk.tell(CheckpointHandedOver(4, parent().state.checkpoint))
    assert desk.sent == []
    desk.tell(ExperimentStatusChanged(Status.ACTIVE))
    assert isinstance(desk.sent_to(POOL)[0], SlotsRequested)


def test_a_copy_that_is_canceled_while_it_waits_ends() -> None:
    desk = child()
    desk.tell(ExperimentStatusChanged(Status.STOPPING_CANCELED))
    assert isinstance(desk.sent_to(EXPERIMENT)[0], TrialEnded)
    desk.tell(CheckpointHandedOver(4, None))
    assert desk.sent == []


def test_a_parent_without_a_checkpoint_ends_the_search() -> None:
    desk = Desk("trial#4")
    desk.tell(created())
    desk.tell(CheckpointWanted(9))
    assert desk.sent_to(CHILD) == [CheckpointHandedOver(4, None)]
    copy = child()
    copy.tell(CheckpointHandedOver(4, None))
    (message,) = copy.sent_to(EXPERIMENT)
    assert isinstance(message, TrialLengthReached)
    assert message.lack.startswith("it is to begin as a copy of trial 4, which has no checkpoint")


def test_a_parent_that_cannot_take_the_wish_says_that_it_has_none() -> None:
    desk = parent()
    desk.bury(CheckpointWanted(9))
    assert desk.sent_to(CHILD) == [CheckpointHandedOver(4, None)]
