"""Trials whose run finds the checkpoint damaged that it begins from."""

from dataclasses import replace

import pytest

from control_plane.actors import addresses
from control_plane.actors.collection_rows import COLLECTIONS, removal_sort_key
from control_plane.actors.messages.experiment import TrialEnded, TrialLengthReached
from control_plane.actors.messages.trial import (
    FALLBACKS_MAX,
    AllocationExited,
    CheckpointDamageReported,
    CheckpointDeletionRequested,
    CheckpointFilesDeleted,
    CheckpointHandedOver,
    CheckpointVerified,
    LengthReached,
    SlotsAssigned,
    TrialKillRequested,
    ValidationReported,
    WorkAssigned,
)
from control_plane.actors.pins import PINS, Pin, decode_pin, encode_pin
from control_plane.actors.records import CheckpointRef, Place, Status
from control_plane.actors.step import ObservedRow
from control_plane.actors.trial.checkpoints import CheckpointRecord, CheckpointState
from control_plane.actors.trial.stalls import STALLS_MAX
from tests.unit.actors.actor_harness import ActorHarness
from tests.unit.actors.sample_messages import checkpoint_reported, trial_created, trial_settings

CAUSE = "state_dict.pth has 3 bytes"
OTHERS = CheckpointRef("ffffffff-0000-4000-8000-000000000000", 3, 70, "1/3/1/x", "0" * 64)


def uuid(steps: int) -> str:
    return checkpoint_reported(steps).checkpoint.uuid


def damage_of(epoch: int, steps: int, *fallbacks: int) -> CheckpointDamageReported:
    return CheckpointDamageReported(epoch, uuid(steps), CAUSE, tuple(map(uuid, fallbacks)))


def places_of(epoch: int) -> SlotsAssigned:
    return SlotsAssigned(epoch, (Place("a", (0, 1)),))


def failure_of(epoch: int) -> AllocationExited:
    return AllocationExited(epoch, "errored", message="DetcloudError: it is damaged")


def record_of(actor: ActorHarness, steps: int) -> CheckpointRecord:
    record = actor.part(f"checkpoint/{uuid(steps)}")
    assert isinstance(record, CheckpointRecord)
    return record


@pytest.fixture
def actor() -> ActorHarness:
    """A trial with checkpoints at 10, 20 and 30, whose second run begins from the last of them."""
    actor = ActorHarness("trial#4")
    actor.deliver(trial_created(length=100), places_of(1))
    actor.deliver(*(checkpoint_reported(steps) for steps in (10, 20, 30)))
    actor.deliver(ValidationReported(1, 30, 0.5), AllocationExited(1, "preempted"), places_of(2))
    return actor


def test_the_next_run_begins_from_the_checkpoint_before_and_no_restart_is_used_up(
    actor: ActorHarness,
) -> None:
    actor.deliver(damage_of(2, 30, 20, 10))
    assert (record_of(actor, 30).state, record_of(actor, 30).damage) == ("DAMAGED", CAUSE)
    assert actor.reasons == [
        f"the next run begins from checkpoint {uuid(20)} at batch 20: 10 batches are trained again"
    ]
    actor.deliver(failure_of(2))
    state = actor.state
    assert state.checkpoint == checkpoint_reported(20).checkpoint
    assert (state.steps, state.epoch, state.restarts, state.stalls) == (20, 3, 0, 1)
    assert state.allocation.from_steps == 20
    (damage,) = state.recent_damages
    assert (damage.uuid, damage.steps, damage.cause) == (uuid(30), 30, CAUSE)
    assert (damage.instead, damage.instead_steps, damage.epoch) == (uuid(20), 20, 2)


def test_one_after_the_other_falls_away_until_the_trial_begins_anew(actor: ActorHarness) -> None:
    for epoch, steps, older in ((2, 30, (20, 10)), (3, 20, (10,)), (4, 10, ())):
        actor.deliver(damage_of(epoch, steps, *older), failure_of(epoch), places_of(epoch + 1))
    assert actor.reasons[-1] == "begun again, which is no failure of its code"
    assert (actor.state.checkpoint, actor.state.steps, actor.state.restarts) == (None, 0, 0)
    assert [record_of(actor, steps).state for steps in (10, 20, 30)] == ["DAMAGED"] * 3
    # What it writes from now on is its latest again, though it has fewer batches than those had.
    actor.deliver(checkpoint_reported(5, epoch=5, number=5))
    assert actor.state.checkpoint == checkpoint_reported(5, epoch=5, number=5).checkpoint
    assert actor.state.steps == 5


def test_a_fallback_that_was_deleted_meanwhile_or_is_damaged_itself_is_passed_over(
    actor: ActorHarness,
) -> None:
    actor.deliver(CheckpointDeletionRequested((uuid(20),)))
    actor.deliver(damage_of(2, 30, 20, 99, 30, 10))
    assert actor.state.checkpoint == checkpoint_reported(10).checkpoint
    actor.deliver(failure_of(2), places_of(3), damage_of(3, 10, 20, 30))
    assert actor.state.checkpoint is None


def test_no_more_fallbacks_are_looked_at_than_a_report_may_name(actor: ActorHarness) -> None:
    unknown = range(200, 200 + FALLBACKS_MAX)
    actor.deliver(damage_of(2, 30, *unknown, 20))
    assert actor.state.checkpoint is None


def test_a_report_doubled_late_or_of_another_checkpoint_changes_nothing(
    actor: ActorHarness,
) -> None:
    before = actor.state
    actor.deliver(damage_of(1, 30, 20), damage_of(2, 20, 10), damage_of(2, 99, 10))
    assert actor.state == before
    assert record_of(actor, 20).state is CheckpointState.COMPLETED
    actor.deliver(damage_of(2, 30, 20, 10))
    once = actor.state
    actor.deliver(damage_of(2, 30, 10), failure_of(1))
    assert actor.state == once
    # The same run's second report would be about another checkpoint than it began from, and the
    # run that follows has another epoch.
    actor.deliver(failure_of(2), damage_of(2, 20, 10))
    assert actor.state.checkpoint == checkpoint_reported(20).checkpoint


def test_a_run_that_trains_on_in_spite_of_the_damage_fails_as_any_other(
    actor: ActorHarness,
) -> None:
    actor.deliver(damage_of(2, 30, 20), ValidationReported(2, 40, 0.4), failure_of(2))
    assert (actor.state.restarts, actor.state.stalls) == (1, 0)
    assert actor.state.checkpoint == checkpoint_reported(20).checkpoint


def test_a_trial_that_claims_damage_for_ever_ends(actor: ActorHarness) -> None:
    # Each run leaves another checkpoint of as many batches behind, and claims that it is damaged.
    epoch, latest = 2, checkpoint_reported(30)
    while not actor.state.status.is_final:
        claim = CheckpointDamageReported(epoch, latest.checkpoint.uuid, CAUSE)
        latest = checkpoint_reported(0, epoch=epoch, number=epoch)
        actor.deliver(claim, latest, failure_of(epoch), places_of(epoch + 1))
        epoch += 1
    assert actor.state.status is Status.ERROR
    # From the second run on each is a stall: one more than may follow each other.
    assert (epoch - 2, actor.state.restarts) == (STALLS_MAX + 1, 0)
    assert actor.state.message == (
        f"it made no progress {STALLS_MAX + 1} times in a row, at last because checkpoint"
        f" {actor.state.recent_damages[-1].uuid}, from which it begins, is damaged: {CAUSE}"
    )


def test_a_paused_trial_goes_on_from_the_checkpoint_before_as_well(actor: ActorHarness) -> None:
    actor.deliver(damage_of(2, 30, 20), AllocationExited(2, "preempted"))
    assert (actor.state.checkpoint, actor.state.steps) == (checkpoint_reported(20).checkpoint, 20)


def test_a_length_that_was_reached_is_not_told_again_by_the_run_that_trains_it_again() -> None:
    actor = ActorHarness("trial#4")
    actor.deliver(trial_created(length=20, closed=False), places_of(1))
    actor.deliver(*(checkpoint_reported(steps) for steps in (10, 20)), LengthReached(1, 20, 0.5))
    actor.deliver(AllocationExited(1, "idle"), WorkAssigned(40, closed=True), places_of(2))
    actor.deliver(damage_of(2, 20, 10), failure_of(2), places_of(3))
    actor.deliver(ValidationReported(3, 20, 0.5), LengthReached(3, 20, 0.5))
    actor.deliver(ValidationReported(3, 40, 0.4), LengthReached(3, 40, 0.4))
    told = [(message.length, message.metric) for message in actor.all_messages(TrialLengthReached)]
    assert told == [(20, 0.5), (40, 0.4)]


def test_a_damaged_one_is_recorded_no_more_and_goes_only_when_it_is_asked_for(
    actor: ActorHarness,
) -> None:
    actor.deliver(damage_of(2, 30, 20))
    actor.deliver(checkpoint_reported(30, epoch=2))
    assert record_of(actor, 30).state is CheckpointState.DAMAGED
    assert actor.rows.get((COLLECTIONS, removal_sort_key(1, uuid(30)))) is None
    # The one that it falls back to is the newest of a trial that goes on, which stays.
    request = CheckpointDeletionRequested((uuid(30), uuid(20)))
    assert actor.deliver(request) == (uuid(30),)
    record = record_of(actor, 30)
    assert (record.state, record.damage) == (CheckpointState.DELETING, CAUSE)


def test_what_holds_a_damaged_one_goes_on_holding_it(actor: ActorHarness) -> None:
    pin = ObservedRow(3, encode_pin(Pin(versions=("digits/1",))))
    actor.rows[PINS, uuid(30)] = pin
    actor.deliver(damage_of(2, 30, 20))
    assert decode_pin(actor.rows[PINS, uuid(30)].body) == Pin(versions=("digits/1",))
    assert actor.deliver(CheckpointDeletionRequested((uuid(30),))) == ()


def test_a_damaged_checkpoint_of_another_trial_ends_the_trial_at_once() -> None:
    actor = ActorHarness("trial#4")
    actor.deliver(trial_created(of=trial_settings(max_restarts=5)), places_of(1))
    actor.deliver(CheckpointDamageReported(1, OTHERS.uuid, CAUSE))
    assert actor.parts == {}
    actor.deliver(failure_of(1))
    assert (actor.state.status, actor.state.restarts) == (Status.ERROR, 0)
    (ended,) = actor.all_messages(TrialEnded)
    assert ended.message == (f"checkpoint {OTHERS.uuid}, from which it begins, is damaged: {CAUSE}")


def test_a_copy_hears_only_of_the_checkpoint_that_its_parent_gave_it() -> None:
    actor = ActorHarness("trial#4")
    actor.deliver(replace(trial_created(), parent_id=3))
    actor.deliver(CheckpointHandedOver(3, OTHERS), places_of(1))
    before = actor.state
    actor.deliver(CheckpointDamageReported(1, uuid(10), CAUSE))
    assert actor.state == before
    actor.deliver(CheckpointDamageReported(1, OTHERS.uuid, CAUSE))
    actor.deliver(CheckpointDamageReported(1, OTHERS.uuid, CAUSE), failure_of(1))
    assert actor.state.status is Status.ERROR
    (damage,) = actor.state.recent_damages
    assert (damage.trial_id, damage.steps, damage.instead) == (3, 70, "")
    assert addresses.trial(3) not in {send.to for send in actor.sent}


def test_a_mark_that_is_taken_back_brings_a_waiting_trial_back_to_its_checkpoint(
    actor: ActorHarness,
) -> None:
    actor.deliver(damage_of(2, 30, 20, 10), failure_of(2))
    assert actor.state.allocation.places == ()
    assert actor.deliver(CheckpointVerified(uuid(30))) == "COMPLETED"
    assert actor.reasons == [f"the next run begins from checkpoint {uuid(30)} at batch 30"]
    assert (record_of(actor, 30).state, record_of(actor, 30).damage) == ("COMPLETED", "")
    state = actor.state
    assert (state.checkpoint, state.steps) == (checkpoint_reported(30).checkpoint, 30)
    assert state.allocation.from_steps == 30
    # Again, and late, it says how it is and changes nothing.
    assert actor.deliver(CheckpointVerified(uuid(30))) == "COMPLETED"
    assert actor.state == state
    # What is found damaged once more is marked once more.
    actor.deliver(places_of(3), damage_of(3, 30, 20, 10))
    assert record_of(actor, 30).state == "DAMAGED"


@pytest.mark.parametrize("failed", [False, True])
def test_a_run_that_began_from_the_one_before_goes_on_from_there(
    actor: ActorHarness, failed: bool
) -> None:
    actor.deliver(damage_of(2, 30, 20, 10))
    if failed:
        # The run that found the damage has ended, and another has begun from batch 20.
        actor.deliver(failure_of(2), places_of(3))
    before = actor.state
    assert actor.deliver(CheckpointVerified(uuid(30))) == "COMPLETED"
    assert record_of(actor, 30).state == "COMPLETED"
    assert actor.state == before
    if failed:
        # Its own checkpoint counts, and its report of damage is of what it began from.
        actor.deliver(damage_of(3, 20, 10))
        assert record_of(actor, 20).state == "DAMAGED"
        assert actor.state.checkpoint == checkpoint_reported(10).checkpoint


def test_an_older_checkpoint_that_is_whole_again_is_not_gone_back_to(actor: ActorHarness) -> None:
    actor.deliver(damage_of(2, 30, 20, 10), failure_of(2), places_of(3))
    actor.deliver(checkpoint_reported(40, epoch=3), AllocationExited(3, "preempted"))
    before = actor.state
    assert actor.deliver(CheckpointVerified(uuid(30))) == "COMPLETED"
    assert actor.state == before


def test_an_ended_trial_that_is_continued_begins_from_what_is_whole_again(
    actor: ActorHarness,
) -> None:
    actor.deliver(damage_of(2, 30, 20, 10), TrialKillRequested(), AllocationExited(2, "killed"))
    assert actor.state.status.is_final
    actor.deliver(CheckpointVerified(uuid(30)))
    assert actor.state.checkpoint == checkpoint_reported(30).checkpoint
    assert actor.state.status.is_final


def test_what_is_deleted_or_unknown_is_not_taken_back(actor: ActorHarness) -> None:
    actor.deliver(damage_of(2, 30, 20, 10), CheckpointDeletionRequested((uuid(30),)))
    assert actor.deliver(CheckpointVerified(uuid(30))) == "DELETING"
    actor.deliver(CheckpointFilesDeleted((uuid(30),)))
    assert actor.deliver(CheckpointVerified(uuid(30))) == "DELETED"
    assert actor.deliver(CheckpointVerified(uuid(99))) == ""
    assert record_of(actor, 30).state == "DELETED"
