"""Trials with a run that starts from a damaged checkpoint."""

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
    """Create a trial with checkpoints at 10, 20 and 30.

    The second run starts from checkpoint 30.
    """
    actor = ActorHarness("trial#4")
    actor.deliver(trial_created(length=100), places_of(1))
    actor.deliver(*(checkpoint_reported(steps) for steps in (10, 20, 30)))
    actor.deliver(ValidationReported(1, 30, 0.5), AllocationExited(1, "preempted"), places_of(2))
    return actor


def test_next_run_starts_from_an_older_checkpoint_without_a_restart(
    actor: ActorHarness,
) -> None:
    actor.deliver(damage_of(2, 30, 20, 10))
    assert (record_of(actor, 30).state, record_of(actor, 30).damage) == ("DAMAGED", CAUSE)
    assert actor.reasons == [
        f"the next run begins from checkpoint {uuid(20)} at batch 20 and trains 10 batches again"
    ]
    actor.deliver(failure_of(2))
    state = actor.state
    assert state.checkpoint == checkpoint_reported(20).checkpoint
    assert (state.steps, state.epoch, state.restarts, state.stalls) == (20, 3, 0, 1)
    assert state.allocation.from_steps == 20
    (damage,) = state.recent_damages
    assert (damage.uuid, damage.steps, damage.cause) == (uuid(30), 30, CAUSE)
    assert (damage.fallback_uuid, damage.fallback_steps, damage.epoch) == (uuid(20), 20, 2)


def test_repeated_damage_ends_at_the_beginning(actor: ActorHarness) -> None:
    for epoch, steps, older in ((2, 30, (20, 10)), (3, 20, (10,)), (4, 10, ())):
        actor.deliver(damage_of(epoch, steps, *older), failure_of(epoch), places_of(epoch + 1))
    assert actor.reasons[-2:] == [
        "the next run begins from the beginning and trains 10 batches again",
        "started again (no failure of the code)",
    ]
    assert (actor.state.checkpoint, actor.state.steps, actor.state.restarts) == (None, 0, 0)
    assert [record_of(actor, steps).state for steps in (10, 20, 30)] == ["DAMAGED"] * 3
    # A new checkpoint becomes the latest, although damaged checkpoints have more batches.
    actor.deliver(checkpoint_reported(5, epoch=5, number=5))
    assert actor.state.checkpoint == checkpoint_reported(5, epoch=5, number=5).checkpoint
    assert actor.state.steps == 5


def test_deleted_or_damaged_fallback_is_skipped(
    actor: ActorHarness,
) -> None:
    actor.deliver(CheckpointDeletionRequested((uuid(20),)))
    actor.deliver(damage_of(2, 30, 20, 99, 30, 10))
    assert actor.state.checkpoint == checkpoint_reported(10).checkpoint
    actor.deliver(failure_of(2), places_of(3), damage_of(3, 10, 20, 30))
    assert actor.state.checkpoint is None


def test_fallbacks_beyond_the_limit_are_ignored(actor: ActorHarness) -> None:
    unknown = range(200, 200 + FALLBACKS_MAX)
    actor.deliver(damage_of(2, 30, *unknown, 20))
    assert actor.state.checkpoint is None


def test_repeated_late_or_foreign_damage_report_changes_no_state(
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
    # After the failure the trial has epoch 3, so a second report of the run with epoch 2 is late.
    actor.deliver(failure_of(2), damage_of(2, 20, 10))
    assert actor.state.checkpoint == checkpoint_reported(20).checkpoint


def test_run_that_trained_despite_the_damage_fails_as_usual(
    actor: ActorHarness,
) -> None:
    actor.deliver(damage_of(2, 30, 20), ValidationReported(2, 40, 0.4), failure_of(2))
    assert (actor.state.restarts, actor.state.stalls) == (1, 0)
    assert actor.state.checkpoint == checkpoint_reported(20).checkpoint


def test_trial_that_always_claims_damage_ends(actor: ActorHarness) -> None:
    # Each run stores a checkpoint of equally many batches, and claims that the checkpoint is
    # damaged.
    epoch, latest = 2, checkpoint_reported(30)
    while not actor.state.status.is_final:
        claim = CheckpointDamageReported(epoch, latest.checkpoint.uuid, CAUSE)
        latest = checkpoint_reported(0, epoch=epoch, number=epoch)
        actor.deliver(claim, latest, failure_of(epoch), places_of(epoch + 1))
        epoch += 1
    assert actor.state.status is Status.ERROR
    # From the second run on each is a stall: one more than the limit of consecutive stalls.
    assert (epoch - 2, actor.state.restarts) == (STALLS_MAX + 1, 0)
    assert actor.state.message == (
        f"it made no progress {STALLS_MAX + 1} times in a row, at last because checkpoint"
        f" {actor.state.recent_damages[-1].uuid}, from which it begins, is damaged: {CAUSE}"
    )


def test_paused_trial_continues_from_an_older_checkpoint(actor: ActorHarness) -> None:
    actor.deliver(damage_of(2, 30, 20), AllocationExited(2, "preempted"))
    assert (actor.state.checkpoint, actor.state.steps) == (checkpoint_reported(20).checkpoint, 20)


def test_reached_length_is_not_reported_again_after_damage() -> None:
    actor = ActorHarness("trial#4")
    actor.deliver(trial_created(length=20, closed=False), places_of(1))
    actor.deliver(*(checkpoint_reported(steps) for steps in (10, 20)), LengthReached(1, 20, 0.5))
    actor.deliver(AllocationExited(1, "idle"), WorkAssigned(40, closed=True), places_of(2))
    actor.deliver(damage_of(2, 20, 10), failure_of(2), places_of(3))
    actor.deliver(ValidationReported(3, 20, 0.5), LengthReached(3, 20, 0.5))
    actor.deliver(ValidationReported(3, 40, 0.4), LengthReached(3, 40, 0.4))
    results = [
        (message.length, message.metric) for message in actor.all_messages(TrialLengthReached)
    ]
    assert results == [(20, 0.5), (40, 0.4)]


def test_damaged_checkpoint_is_not_recorded_again_and_is_deleted_on_request(
    actor: ActorHarness,
) -> None:
    actor.deliver(damage_of(2, 30, 20))
    actor.deliver(checkpoint_reported(30, epoch=2))
    assert record_of(actor, 30).state is CheckpointState.DAMAGED
    assert actor.rows.get((COLLECTIONS, removal_sort_key(1, uuid(30)))) is None
    # Checkpoint 20 is now the latest checkpoint of an open trial, so it stays.
    request = CheckpointDeletionRequested((uuid(30), uuid(20)))
    assert actor.deliver(request) == (uuid(30),)
    record = record_of(actor, 30)
    assert (record.state, record.damage) == (CheckpointState.DELETING, CAUSE)


def test_pin_keeps_a_damaged_checkpoint(actor: ActorHarness) -> None:
    pin = ObservedRow(3, encode_pin(Pin(versions=("digits/1",))))
    actor.rows[PINS, uuid(30)] = pin
    actor.deliver(damage_of(2, 30, 20))
    assert decode_pin(actor.rows[PINS, uuid(30)].body) == Pin(versions=("digits/1",))
    assert actor.deliver(CheckpointDeletionRequested((uuid(30),))) == ()


def test_damaged_checkpoint_of_a_source_trial_ends_the_trial() -> None:
    actor = ActorHarness("trial#4")
    actor.deliver(trial_created(of=trial_settings(max_restarts=5)), places_of(1))
    actor.deliver(CheckpointDamageReported(1, OTHERS.uuid, CAUSE))
    assert actor.parts == {}
    actor.deliver(failure_of(1))
    assert (actor.state.status, actor.state.restarts) == (Status.ERROR, 0)
    (ended,) = actor.all_messages(TrialEnded)
    assert ended.message == (f"checkpoint {OTHERS.uuid}, from which it begins, is damaged: {CAUSE}")


def test_copy_records_only_damage_of_the_parents_checkpoint() -> None:
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
    assert (damage.trial_id, damage.steps, damage.fallback_uuid) == (3, 70, "")
    assert addresses.trial(3) not in {send.to for send in actor.sent}


def test_cleared_damage_restores_the_checkpoint_of_a_waiting_trial(
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
    # A repeated command replies with the state and changes nothing.
    assert actor.deliver(CheckpointVerified(uuid(30))) == "COMPLETED"
    assert actor.state == state
    # A second damage marks the checkpoint again.
    actor.deliver(places_of(3), damage_of(3, 30, 20, 10))
    assert record_of(actor, 30).state == "DAMAGED"


@pytest.mark.parametrize("failed", [False, True])
def test_running_trial_keeps_the_checkpoint_of_the_start(actor: ActorHarness, failed: bool) -> None:
    actor.deliver(damage_of(2, 30, 20, 10))
    if failed:
        # The run that found the damage has ended, and a second run has begun from batch 20.
        actor.deliver(failure_of(2), places_of(3))
    before = actor.state
    assert actor.deliver(CheckpointVerified(uuid(30))) == "COMPLETED"
    assert record_of(actor, 30).state == "COMPLETED"
    assert actor.state == before
    if failed:
        # The run started from checkpoint 20, so its report of damage concerns that checkpoint.
        actor.deliver(damage_of(3, 20, 10))
        assert record_of(actor, 20).state == "DAMAGED"
        assert actor.state.checkpoint == checkpoint_reported(10).checkpoint


def test_older_checkpoint_without_damage_does_not_become_the_latest(actor: ActorHarness) -> None:
    actor.deliver(damage_of(2, 30, 20, 10), failure_of(2), places_of(3))
    actor.deliver(checkpoint_reported(40, epoch=3), AllocationExited(3, "preempted"))
    before = actor.state
    assert actor.deliver(CheckpointVerified(uuid(30))) == "COMPLETED"
    assert actor.state == before


def test_continued_trial_starts_from_a_cleared_checkpoint(
    actor: ActorHarness,
) -> None:
    actor.deliver(damage_of(2, 30, 20, 10), TrialKillRequested(), AllocationExited(2, "killed"))
    assert actor.state.status.is_final
    actor.deliver(CheckpointVerified(uuid(30)))
    assert actor.state.checkpoint == checkpoint_reported(30).checkpoint
    assert actor.state.status.is_final


def test_damage_of_a_deleted_or_unknown_checkpoint_is_not_cleared(actor: ActorHarness) -> None:
    actor.deliver(damage_of(2, 30, 20, 10), CheckpointDeletionRequested((uuid(30),)))
    assert actor.deliver(CheckpointVerified(uuid(30))) == "DELETING"
    actor.deliver(CheckpointFilesDeleted((uuid(30),)))
    assert actor.deliver(CheckpointVerified(uuid(30))) == "DELETED"
    assert actor.deliver(CheckpointVerified(uuid(99))) == ""
    assert record_of(actor, 30).state == "DELETED"


def load_failure_of(epoch: int, steps: int, *fallbacks: int) -> CheckpointDamageReported:
    return replace(damage_of(epoch, steps, *fallbacks), is_load_failure=True)


def allow_restarts(actor: ActorHarness, count: int) -> None:
    settings = replace(actor.state.settings, max_restarts=count)
    actor.state = replace(actor.state, settings=settings)


def test_checkpoint_is_abandoned_after_two_consecutive_load_failures(actor: ActorHarness) -> None:
    allow_restarts(actor, 5)
    actor.deliver(load_failure_of(2, 30, 20, 10), failure_of(2), places_of(3))
    # The first failure counts, and the same checkpoint is loaded again.
    assert (actor.state.restarts, actor.state.checkpoint) == (
        1,
        checkpoint_reported(30).checkpoint,
    )
    assert record_of(actor, 30).state == "COMPLETED"
    actor.deliver(load_failure_of(3, 30, 20, 10), failure_of(3))
    assert (actor.state.restarts, actor.state.checkpoint) == (
        1,
        checkpoint_reported(20).checkpoint,
    )
    record = record_of(actor, 30)
    assert (record.state, record.damage) == ("DAMAGED", f"it cannot be loaded: {CAUSE}")
    assert actor.state.recent_damages[-1].fallback_uuid == uuid(20)


def test_load_failure_after_a_good_run_counts_as_the_first(
    actor: ActorHarness,
) -> None:
    allow_restarts(actor, 5)
    actor.deliver(load_failure_of(2, 30, 20), failure_of(2), places_of(3))
    actor.deliver(failure_of(3), places_of(4), load_failure_of(4, 30, 20), failure_of(4))
    assert (actor.state.restarts, actor.state.checkpoint) == (
        3,
        checkpoint_reported(30).checkpoint,
    )


def test_without_restarts_left_an_older_checkpoint_is_loaded_immediately(
    actor: ActorHarness,
) -> None:
    allow_restarts(actor, 0)
    actor.deliver(load_failure_of(2, 30, 20), failure_of(2))
    assert actor.state.checkpoint == checkpoint_reported(20).checkpoint
    assert (actor.state.status, actor.state.restarts) == (Status.ACTIVE, 0)


def test_late_or_repeated_load_failure_changes_no_state(actor: ActorHarness) -> None:
    allow_restarts(actor, 5)
    actor.deliver(load_failure_of(2, 30, 20), load_failure_of(2, 30, 20))
    assert actor.state.checkpoint == checkpoint_reported(30).checkpoint
    actor.deliver(failure_of(2), places_of(3), load_failure_of(2, 30, 20))
    actor.deliver(load_failure_of(3, 20, 10))
    assert actor.state.checkpoint == checkpoint_reported(30).checkpoint
    assert not actor.state.recent_damages


def test_load_failure_of_a_foreign_checkpoint_is_a_failure_of_the_run() -> None:
    actor = ActorHarness("trial#4")
    actor.deliver(trial_created(length=100), places_of(1))
    actor.deliver(replace(load_failure_of(1, 30), uuid=OTHERS.uuid), failure_of(1))
    assert not actor.state.recent_damages
    assert actor.state.restarts == 1
