"""An experiment's job: a row in the partition of its pool, from its first day to its last."""

from dataclasses import replace
from decimal import Decimal

import pytest

from control_plane.actors.experiment_messages import (
    CancelRequested,
    JobAudited,
    PoolChanged,
    SettingsChanged,
    TrialEnded,
)
from control_plane.actors.jobs import JobRow, read_job
from control_plane.actors.pool_messages import JobChanged
from control_plane.actors.records import Status
from control_plane.actors.step import Refused
from control_plane.actors.trial_messages import TrialCreated, TrialMoved
from control_plane.evolve import evolve
from tests.unit.actors.desk import ABSENT, Desk
from tests.unit.actors.samples import SUBMITTED_MS, random_plan, submitted

SORT = "000000000001"
POOL, SPOT = "pool#default", "pool#spot"
TOLD = [JobChanged(1)]


def experiment(trials: int = 3, *, concurrent: int = 0, job: JobRow | None = None) -> Desk:
    desk = Desk("experiment#1")
    message = submitted(random_plan(trials, concurrent=concurrent))
    desk.tell(replace(message, job=job or JobRow()))
    return desk


def row(desk: Desk, pool: str = "default") -> JobRow | None:
    seen = desk.row(f"jobs#{pool}", SORT)
    return None if seen == ABSENT else read_job(seen.body)


def refusal(desk: Desk, command: object) -> tuple[str, str]:
    before = desk.state
    with pytest.raises(Refused) as refused:
        desk.tell(command)
    assert desk.state == before
    return refused.value.code, str(refused.value)


def test_a_submitted_experiment_is_a_job_and_its_pool_hears_of_it() -> None:
    asked = JobRow(weight=2.0, priority=7, max_slots=4, label="a100", single_agent=True)
    desk = experiment(job=asked)
    assert row(desk) == replace(asked, submitted_ms=SUBMITTED_MS)
    assert desk.sent_to(POOL) == TOLD


def test_an_experiment_that_has_ended_is_no_job() -> None:
    desk = experiment(1)
    desk.tell(CancelRequested())
    assert row(desk) is not None
    desk.tell(TrialEnded(0, Status.CANCELED, "USER_CANCELED"))
    assert row(desk) is None
    assert desk.sent_to(POOL) == TOLD


def test_what_concerns_the_scheduler_goes_into_the_row_and_nothing_else_does() -> None:
    desk = experiment()
    desk.tell(SettingsChanged(name="letters", description="again"))
    assert desk.sent == []
    desk.tell(SettingsChanged(weight=0.5, priority=3, max_slots=8, max_slots_given=True))
    assert row(desk) == JobRow(SUBMITTED_MS, 0.5, 3, 8)
    # The trials need not know.
    assert [send.to for send in desk.sent] == [POOL]
    desk.tell(SettingsChanged(weight=0.5, priority=3))
    assert (desk.sent, desk.parts_written) == ([], [])
    desk.tell(SettingsChanged(max_slots=None, max_slots_given=True))
    assert row(desk) == JobRow(SUBMITTED_MS, 0.5, 3, None)


def test_another_priority_takes_the_job_back_to_where_it_was_submitted() -> None:
    desk = experiment()
    desk.tell(SettingsChanged(position="17.5"))
    assert row(desk) == JobRow(SUBMITTED_MS, position="17.5")
    desk.tell(SettingsChanged(priority=9))
    found = row(desk)
    assert found == JobRow(SUBMITTED_MS, priority=9)
    # 500 ms are 500,000 us.
    assert found.at() == Decimal(500_000)


def test_it_stays_where_it_was_moved_if_it_is_to_or_if_its_priority_is_the_same() -> None:
    desk = experiment()
    desk.tell(SettingsChanged(priority=9, position="17.5"))
    desk.tell(SettingsChanged(priority=9))
    assert row(desk) == JobRow(SUBMITTED_MS, priority=9, position="17.5")
    desk.tell(SettingsChanged(priority=8, keep_position=True))
    assert row(desk) == JobRow(SUBMITTED_MS, priority=8, position="17.5")
    desk.tell(SettingsChanged(priority=7, position="3"))
    assert row(desk) == JobRow(SUBMITTED_MS, priority=7, position="3")


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
def test_what_no_job_can_have_is_refused(change: SettingsChanged, text: str) -> None:
    desk = experiment()
    assert refusal(desk, change) == ("invalid", text)
    assert row(desk) == JobRow(SUBMITTED_MS)


def test_a_job_that_moves_has_a_row_in_the_new_pool_alone_and_all_hear_of_it() -> None:
    desk = experiment(3)
    desk.tell(TrialEnded(1, Status.COMPLETED, ""))
    assert desk.tell(PoolChanged("spot")) == 1
    assert (row(desk), row(desk, "spot")) == (None, JobRow(SUBMITTED_MS))
    assert (desk.sent_to(POOL), desk.sent_to(SPOT)) == (TOLD, TOLD)
    assert desk.sent_to("trial#1") == desk.sent_to("trial#3") == [TrialMoved("spot")]
    assert desk.sent_to("trial#2") == []
    assert desk.state.pool == "spot"


def test_trials_that_are_created_later_ask_in_the_new_pool() -> None:
    desk = experiment(3, concurrent=1)
    desk.tell(PoolChanged("spot"))
    desk.tell(TrialEnded(0, Status.COMPLETED, ""))
    pools = [created.settings.pool for created in desk.ever_sent(TrialCreated)]
    assert pools == ["default", "spot"]


def test_a_job_stays_what_it_is_when_it_moves() -> None:
    desk = experiment()
    desk.tell(SettingsChanged(weight=3.0, position="5"))
    desk.tell(PoolChanged("spot"))
    assert row(desk, "spot") == JobRow(SUBMITTED_MS, 3.0, position="5")


def test_moves_that_are_none_are_refused() -> None:
    desk = experiment()
    assert refusal(desk, PoolChanged("default")) == ("conflict", "resource pool is unchanged")
    assert refusal(desk, PoolChanged("")) == ("invalid", "resource pool must be set")
    desk.state = evolve(desk.state, status=Status.COMPLETED)
    code, text = refusal(desk, PoolChanged("spot"))
    assert (code, text) == ("conflict", "experiment 1 is COMPLETED and can no longer be moved")


def test_an_audit_puts_right_what_pools_know() -> None:
    desk = experiment()
    known = desk.row("jobs#default", SORT)
    desk.rows["jobs#spot", SORT] = known
    del desk.rows["jobs#default", SORT]
    desk.tell(JobAudited("spot"), JobAudited("default"))
    assert (row(desk, "spot"), row(desk)) == (None, JobRow(SUBMITTED_MS))
    assert (desk.sent_to(POOL), desk.sent_to(SPOT)) == (TOLD, TOLD)


def test_an_audit_removes_the_row_of_an_experiment_that_has_ended() -> None:
    desk = experiment(1)
    desk.tell(TrialEnded(0, Status.COMPLETED, ""))
    desk.rows["jobs#default", SORT] = desk.row("experiments", SORT)
    desk.tell(JobAudited("default"))
    assert row(desk) is None
