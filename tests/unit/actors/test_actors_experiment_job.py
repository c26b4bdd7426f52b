"""An experiment's job row in the pool's partition, from the submission to the end."""

from dataclasses import replace
from decimal import Decimal

import pytest

from control_plane.actors.job_row import JobRow, decode_job
from control_plane.actors.messages.experiment import (
    CancelRequested,
    JobAudited,
    PoolChanged,
    SettingsChanged,
    TrialEnded,
)
from control_plane.actors.messages.pool import JobChanged
from control_plane.actors.messages.trial import TrialCreated, TrialMoved
from control_plane.actors.records import Status
from control_plane.actors.step import CommandRefused
from control_plane.evolve import evolve
from tests.unit.actors.actor_harness import ABSENT, ActorHarness
from tests.unit.actors.sample_messages import SUBMITTED_MS, experiment_submitted, random_plan

SORT = "000000000001"
POOL, SPOT = "pool#default", "pool#spot"
TOLD = [JobChanged(1)]


def experiment(trials: int = 3, *, concurrent: int = 0, job: JobRow | None = None) -> ActorHarness:
    actor = ActorHarness("experiment#1")
    message = experiment_submitted(random_plan(trials, concurrent=concurrent))
    actor.deliver(replace(message, job=job or JobRow()))
    return actor


def row(actor: ActorHarness, pool: str = "default") -> JobRow | None:
    seen = actor.row(f"jobs#{pool}", SORT)
    return None if seen == ABSENT else decode_job(seen.body)


def refusal(actor: ActorHarness, command: object) -> tuple[str, str]:
    before = actor.state
    with pytest.raises(CommandRefused) as refused:
        actor.deliver(command)
    assert actor.state == before
    return refused.value.code, str(refused.value)


def test_submission_writes_a_job_row_and_notifies_the_pool() -> None:
    asked = JobRow(weight=2.0, priority=7, max_slots=4, label="a100", single_agent=True)
    actor = experiment(job=asked)
    assert row(actor) == replace(asked, submitted_ms=SUBMITTED_MS)
    assert actor.messages_to(POOL) == TOLD


def test_ended_experiment_removes_the_job_row() -> None:
    actor = experiment(1)
    actor.deliver(CancelRequested())
    assert row(actor) is not None
    actor.deliver(TrialEnded(0, Status.CANCELED, "USER_CANCELED"))
    assert row(actor) is None
    assert actor.messages_to(POOL) == TOLD


def test_job_row_has_only_the_settings_for_the_scheduler() -> None:
    actor = experiment()
    actor.deliver(SettingsChanged(name="letters", description="again"))
    assert actor.sent == []
    actor.deliver(SettingsChanged(weight=0.5, priority=3, max_slots=8, max_slots_given=True))
    assert row(actor) == JobRow(SUBMITTED_MS, 0.5, 3, 8)
    # The trials need not know.
    assert [send.to for send in actor.sent] == [POOL]
    actor.deliver(SettingsChanged(weight=0.5, priority=3))
    assert (actor.sent, actor.parts_written) == ([], [])
    actor.deliver(SettingsChanged(max_slots=None, max_slots_given=True))
    assert row(actor) == JobRow(SUBMITTED_MS, 0.5, 3, None)


def test_new_priority_resets_the_position() -> None:
    actor = experiment()
    actor.deliver(SettingsChanged(position="17.5"))
    assert row(actor) == JobRow(SUBMITTED_MS, position="17.5")
    actor.deliver(SettingsChanged(priority=9))
    found = row(actor)
    assert found == JobRow(SUBMITTED_MS, priority=9)
    # 500 ms are 500,000 us.
    assert found.queue_position() == Decimal(500_000)


def test_position_stays_with_keep_position_or_an_unchanged_priority() -> None:
    actor = experiment()
    actor.deliver(SettingsChanged(priority=9, position="17.5"))
    actor.deliver(SettingsChanged(priority=9))
    assert row(actor) == JobRow(SUBMITTED_MS, priority=9, position="17.5")
    actor.deliver(SettingsChanged(priority=8, keep_position=True))
    assert row(actor) == JobRow(SUBMITTED_MS, priority=8, position="17.5")
    actor.deliver(SettingsChanged(priority=7, position="3"))
    assert row(actor) == JobRow(SUBMITTED_MS, priority=7, position="3")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (SettingsChanged(weight=0.0), "weight must be greater than 0, not 0.0"),
        (SettingsChanged(weight=-1.0), "weight must be greater than 0, not -1.0"),
        (SettingsChanged(priority=0), "priority must be between 1 and 99, not 0"),
        (SettingsChanged(priority=100), "priority must be between 1 and 99, not 100"),
        (SettingsChanged(position="here"), "position must be a decimal number, not 'here'"),
        (SettingsChanged(position="NaN"), "position must be a decimal number, not 'NaN'"),
    ],
)
def test_invalid_job_settings_are_refused(change: SettingsChanged, text: str) -> None:
    actor = experiment()
    assert refusal(actor, change) == ("invalid", text)
    assert row(actor) == JobRow(SUBMITTED_MS)


def test_moved_job_has_a_single_row_and_notifies_pools_and_trials() -> None:
    actor = experiment(3)
    actor.deliver(TrialEnded(1, Status.COMPLETED, ""))
    assert actor.deliver(PoolChanged("spot")) == 1
    assert (row(actor), row(actor, "spot")) == (None, JobRow(SUBMITTED_MS))
    assert (actor.messages_to(POOL), actor.messages_to(SPOT)) == (TOLD, TOLD)
    assert actor.messages_to("trial#1") == actor.messages_to("trial#3") == [TrialMoved("spot")]
    assert actor.messages_to("trial#2") == []
    assert actor.state.pool == "spot"


def test_new_trials_request_slots_in_the_new_pool() -> None:
    actor = experiment(3, concurrent=1)
    actor.deliver(PoolChanged("spot"))
    actor.deliver(TrialEnded(0, Status.COMPLETED, ""))
    pools = [created.settings.pool for created in actor.all_messages(TrialCreated)]
    assert pools == ["default", "spot"]


def test_job_settings_survive_a_move() -> None:
    actor = experiment()
    actor.deliver(SettingsChanged(weight=3.0, position="5"))
    actor.deliver(PoolChanged("spot"))
    assert row(actor, "spot") == JobRow(SUBMITTED_MS, 3.0, position="5")


def test_invalid_moves_are_refused() -> None:
    actor = experiment()
    assert refusal(actor, PoolChanged("default")) == (
        "conflict",
        "the job is already in that resource pool",
    )
    assert refusal(actor, PoolChanged("")) == ("invalid", "resource pool must be set")
    actor.state = evolve(actor.state, status=Status.COMPLETED)
    code, text = refusal(actor, PoolChanged("spot"))
    assert (code, text) == ("conflict", "experiment 1 is COMPLETED and can no longer be moved")


def test_audit_repairs_job_rows() -> None:
    actor = experiment()
    known = actor.row("jobs#default", SORT)
    actor.rows["jobs#spot", SORT] = known
    del actor.rows["jobs#default", SORT]
    actor.deliver(JobAudited("spot"), JobAudited("default"))
    assert (row(actor, "spot"), row(actor)) == (None, JobRow(SUBMITTED_MS))
    assert (actor.messages_to(POOL), actor.messages_to(SPOT)) == (TOLD, TOLD)


def test_audit_removes_the_row_of_an_ended_experiment() -> None:
    actor = experiment(1)
    actor.deliver(TrialEnded(0, Status.COMPLETED, ""))
    actor.rows["jobs#default", SORT] = actor.row("experiments", SORT)
    actor.deliver(JobAudited("default"))
    assert row(actor) is None
