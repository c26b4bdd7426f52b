"""The retention of logs and metrics, as experiments and trials decide it."""

import json
from dataclasses import replace

import pytest

from control_plane.actors.messages.experiment import (
    CollectionEnded,
    ContinueRequested,
    DeleteRequested,
    KillRequested,
    SettingsChanged,
    TrialEnded,
)
from control_plane.actors.messages.experiment_expiry import ExpiryDue, ExpiryRequested
from control_plane.actors.messages.trial import TrialContinued, TrialKillRequested
from control_plane.actors.messages.trial_expiry import DataExpired
from control_plane.actors.records import DataRetention, Retention, Status
from control_plane.actors.step import CommandRefused
from control_plane.actors.trial.state import ExpiredData
from tests.unit.actors.actor_harness import START_MS, ActorHarness
from tests.unit.actors.sample_messages import experiment_submitted, trial_created, trial_settings

DAY_MS = 86_400_000
PLAN = ("retention-ends", "000000000001")
REQUEST = ("collections", "000000000001")


def ended_experiment(retention: DataRetention) -> ActorHarness:
    """An experiment that ended at START_MS, with its collection done."""
    actor = ActorHarness("experiment#1")
    actor.deliver(replace(experiment_submitted(), data_retention=retention))
    assert PLAN not in actor.rows
    actor.deliver(KillRequested(), TrialEnded(0, Status.CANCELED, ""))
    assert actor.state.status is Status.CANCELED
    actor.deliver(CollectionEnded(actor.state.collection_number))
    return actor


def planned_ms(actor: ActorHarness) -> int | None:
    row = actor.rows.get(PLAN)
    assert (row is None) == (actor.state.expiry.planned is None)
    return None if row is None else int(row.body)


def requested_expiry(actor: ActorHarness) -> object:
    """Return the field `expiry` of the collection request, None without the field."""
    return json.loads(actor.rows[REQUEST].body).get("expiry")


@pytest.mark.parametrize("days", [None, -1])
def test_data_without_an_end_is_never_deleted(days: int | None) -> None:
    assert planned_ms(ended_experiment(DataRetention(days, days))) is None


def test_days_count_from_the_end_of_the_experiment() -> None:
    actor = ended_experiment(DataRetention(7, 30))
    assert planned_ms(actor) == START_MS + 7 * DAY_MS
    actor.now_ms = START_MS + 7 * DAY_MS
    actor.deliver(ExpiryDue())
    assert planned_ms(actor) is None
    assert requested_expiry(actor) == [START_MS + 7 * DAY_MS, 7, 30, False]
    actor.deliver(CollectionEnded(actor.state.collection_number))
    assert actor.state.expiry.logs_deleted_ms == actor.now_ms
    assert actor.state.expiry.metrics_deleted_ms is None
    # The metrics are next.
    assert planned_ms(actor) == START_MS + 30 * DAY_MS
    actor.now_ms = START_MS + 30 * DAY_MS
    actor.deliver(ExpiryDue())
    actor.deliver(CollectionEnded(actor.state.collection_number))
    assert actor.state.expiry.metrics_deleted_ms == actor.now_ms
    assert planned_ms(actor) is None


def test_early_message_requests_nothing() -> None:
    actor = ended_experiment(DataRetention(7))
    actor.now_ms = START_MS + 7 * DAY_MS - 1
    actor.deliver(ExpiryDue())
    assert REQUEST not in actor.rows
    assert planned_ms(actor) == START_MS + 7 * DAY_MS


def test_repeated_message_requests_once() -> None:
    actor = ended_experiment(DataRetention(0))
    actor.deliver(ExpiryDue())
    number = actor.state.collection_number
    actor.deliver(ExpiryDue())
    assert actor.state.collection_number == number


def test_later_request_for_checkpoints_keeps_the_expiry() -> None:
    actor = ended_experiment(DataRetention(0))
    actor.deliver(ExpiryDue())
    first = requested_expiry(actor)
    old = actor.state.collection_number
    actor.deliver(SettingsChanged(retention=Retention(1, 1, 1)))
    assert requested_expiry(actor) == first
    # The answer to the replaced request changes nothing.
    actor.deliver(CollectionEnded(old))
    assert actor.state.expiry.logs_deleted_ms is None
    assert actor.state.expiry.pending is not None


def test_continued_experiment_drops_plan_and_request() -> None:
    actor = ended_experiment(DataRetention(0, 7))
    actor.deliver(ExpiryDue())
    actor.deliver(ContinueRequested())
    assert actor.state.status is Status.ACTIVE
    assert (planned_ms(actor), actor.state.expiry.pending) == (None, None)
    actor.deliver(CollectionEnded(actor.state.collection_number))
    assert actor.state.expiry.logs_deleted_ms is None
    actor.deliver(ExpiryDue())
    assert REQUEST not in actor.rows
    # The days count from the new end.
    actor.now_ms += DAY_MS
    actor.deliver(KillRequested(), TrialEnded(0, Status.CANCELED, "", run_generation=1))
    assert planned_ms(actor) == actor.now_ms


def test_deleted_experiment_has_no_plan() -> None:
    actor = ended_experiment(DataRetention(7))
    actor.deliver(DeleteRequested())
    assert planned_ms(actor) is None
    assert requested_expiry(actor) is None


def test_change_of_days_plans_again() -> None:
    actor = ended_experiment(DataRetention(7))
    actor.deliver(SettingsChanged(data_retention=DataRetention(metrics_days=2)))
    assert planned_ms(actor) == START_MS + 2 * DAY_MS
    actor.deliver(SettingsChanged(data_retention=DataRetention(-1, -1)))
    assert planned_ms(actor) is None
    actor.deliver(SettingsChanged(trial_log_days=(5, 3)))
    assert planned_ms(actor) == START_MS + 3 * DAY_MS
    actor.deliver(SettingsChanged(trial_log_days=(5, -1)))
    assert planned_ms(actor) is None


@pytest.mark.parametrize(
    "change",
    [
        SettingsChanged(data_retention=DataRetention(-2)),
        SettingsChanged(data_retention=DataRetention(None, 32_768)),
        SettingsChanged(trial_log_days=(1, 32_768)),
    ],
)
def test_refuses_days_out_of_range(change: SettingsChanged) -> None:
    actor = ended_experiment(DataRetention())
    with pytest.raises(CommandRefused, match="from -1 to 32767 days"):
        actor.deliver(change)


def test_at_most_a_thousand_trials_have_their_own_days() -> None:
    actor = ended_experiment(DataRetention())
    for trial_id in range(1, 1_001):
        actor.deliver(SettingsChanged(trial_log_days=(trial_id, 1)))
    actor.deliver(SettingsChanged(trial_log_days=(1_000, 2)))
    with pytest.raises(CommandRefused, match="1000 trials"):
        actor.deliver(SettingsChanged(trial_log_days=(1_001, 1)))


def test_schedule_postpones_the_request_once() -> None:
    actor = ended_experiment(DataRetention(0))
    actor.deliver(ExpiryDue())
    at_ms = START_MS + 5_000
    actor.deliver(CollectionEnded(actor.state.collection_number, expires_ms=at_ms))
    assert planned_ms(actor) == at_ms
    assert actor.state.expiry.logs_deleted_ms is None
    actor.now_ms = at_ms
    actor.deliver(ExpiryDue())
    assert requested_expiry(actor) == [at_ms, 0, None, True]


def test_failed_collection_of_a_deletion_records_nothing() -> None:
    actor = ended_experiment(DataRetention(0))
    actor.deliver(ExpiryDue())
    actor.deliver(CollectionEnded(actor.state.collection_number, "the store is away"))
    assert actor.state.expiry.logs_deleted_ms is None


def test_admin_applies_the_clusters_defaults_to_unset_days() -> None:
    actor = ended_experiment(DataRetention(metrics_days=-1))
    actor.now_ms = START_MS + DAY_MS
    assert actor.deliver(ExpiryRequested(DataRetention(2, 0))) is False
    assert REQUEST not in actor.rows
    assert actor.deliver(ExpiryRequested(DataRetention(1, 0))) is True
    assert requested_expiry(actor) == [actor.now_ms, 1, -1, True]


def test_admin_cannot_delete_data_of_running_experiments() -> None:
    actor = ActorHarness("experiment#1")
    actor.deliver(replace(experiment_submitted(), data_retention=DataRetention(0, 0)))
    with pytest.raises(CommandRefused, match="only data of an ended experiment"):
        actor.deliver(ExpiryRequested(DataRetention(0, 0)))
    actor.deliver(ExpiryDue())
    assert REQUEST not in actor.rows


def test_ended_trial_marks_its_runs() -> None:
    trial = ActorHarness("trial#5")
    trial.deliver(trial_created())
    epoch = trial.state.epoch
    assert trial.deliver(DataExpired(logs=True, metrics=True)) == (0, 0)
    trial.deliver(TrialKillRequested())
    assert trial.state.status.is_final
    assert trial.deliver(DataExpired(logs=True, metrics=False)) == (epoch, 0)
    trial.now_ms += 5
    assert trial.deliver(DataExpired(logs=True, metrics=True)) == (epoch, epoch)
    marks = ExpiredData(epoch, START_MS, epoch, START_MS + 5)
    assert trial.state.expired_data == marks
    # A continued trial keeps the marks of its earlier runs.
    trial.deliver(TrialContinued(1, trial_settings()))
    assert trial.deliver(DataExpired(logs=True, metrics=True)) == (epoch, epoch)
    assert trial.state.expired_data == marks
