"""Runs of schedules by the tick: exactly one experiment for each time."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from control_plane.access.principals import Principal, Role
from control_plane.actors import addresses
from control_plane.actors.messages.experiment import KillRequested
from control_plane.engine import due_rows
from control_plane.engine.due_rows import process_due_rows
from control_plane.queries.schedules import (
    SCHEDULE_CODEC,
    ScheduledRun,
    ScheduleRecord,
    schedule_key,
    time_key,
)
from control_plane.rows.user_rows import SCHEDULE_TIME
from control_plane.state.table import Unavailable, Write
from control_plane.usecases import scheduled_runs, submission
from control_plane.usecases.idempotency import no_extra_writes
from control_plane.usecases.schedules import create_schedule, delete_schedule, pause_schedule
from control_plane.usecases.submission import Submission
from control_plane.usecases.templates import TemplateRecord, delete_template, put_template
from lambdas.maintenance import Maintenance
from tests.unit.api.agent_side import CONFIG
from tests.unit.api.cluster import NOW_MS, Cluster, build_cluster

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
# NOW_MS is 8:00 UTC on 15 January.
NEXT_MS = NOW_MS + 18 * HOUR_MS
ADA = Principal("ada", Role.ADMIN)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return build_cluster(tmp_path)


def schedule(
    cluster: Cluster, section: dict[str, Any] | None = None, template: str | None = None
) -> ScheduleRecord:
    """Store a schedule for 2:00 UTC each day, with other fields of `section`."""
    fields = {"cron": "0 2 * * *", **(section or {})}
    config = f"{CONFIG}\nschedule: {json.dumps(fields)}\n"
    submitted = Submission(config, cluster.store_code(), template=template)
    record, _ = create_schedule(cluster.services, submitted, ADA, no_extra_writes)
    return record


def tick(cluster: Cluster, now_ms: int | None = None) -> None:
    """Run the pass over due rows at a time."""
    cluster.clock.ms = cluster.clock.ms if now_ms is None else now_ms
    services = cluster.services
    Maintenance(services.engine, find_services=lambda: services).redrive_mail()


def read(cluster: Cluster) -> ScheduleRecord:
    row = cluster.services.table.get(schedule_key(1))
    assert row is not None
    return SCHEDULE_CODEC.decode(row.body)


def outcomes(cluster: Cluster) -> list[tuple[str, int, int | None]]:
    return [(run.outcome, run.time_ms, run.experiment_id) for run in read(cluster).runs]


def experiments(cluster: Cluster) -> list[int]:
    return [item["id"] for item in cluster.get("/experiments").json["items"]]


def test_due_time_submits_one_experiment(cluster: Cluster) -> None:
    schedule(cluster)
    tick(cluster, NEXT_MS - 1)
    assert experiments(cluster) == []
    for delay_ms in (0, 1_000, 60_000):
        tick(cluster, NEXT_MS + delay_ms)
    assert experiments(cluster) == [1]
    assert outcomes(cluster) == [("submitted", NEXT_MS, 1)]
    assert read(cluster).next_ms == NEXT_MS + DAY_MS
    experiment = cluster.get("/experiments/1").json
    assert (experiment["user"], experiment["schedule_id"]) == ("ada", 1)
    assert (experiment["config"]["schedule"], experiment["seed"] >= 0) == (None, True)


def test_time_zone_moves_the_times(cluster: Cluster) -> None:
    # 2:00 in New York is 7:00 UTC, and the next one is 23 hours away.
    assert schedule(cluster, {"time_zone": "America/New_York"}).next_ms == NOW_MS + 23 * HOUR_MS


def test_far_times_stay_near_in_the_due_index(cluster: Cluster) -> None:
    schedule(cluster)
    for hours in range(3):
        tick(cluster, NOW_MS + hours * HOUR_MS)
        row = cluster.services.table.get(time_key(1))
        assert row is not None
        assert row.due_ms == cluster.clock.ms + HOUR_MS
    assert experiments(cluster) == []


def test_waiting_schedules_cost_no_reads(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    table, reads = cluster.services.table, list[str]()
    for name in ("get", "get_many", "query"):
        read_rows = getattr(table, name)

        def count(*arguments: Any, name: str = name, read: Any = read_rows, **more: Any) -> Any:
            reads.append(name)
            return read(*arguments, **more)

        monkeypatch.setattr(table, name, count)
    tick(cluster)
    without = len(reads)
    schedule(cluster)
    reads.clear()
    tick(cluster)
    assert len(reads) == without


def test_concurrent_run_submits_one_experiment(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule(cluster)
    cluster.clock.ms = NEXT_MS
    check = submission.check_submission
    partition = time_key(1).partition

    def check_behind_rival(*arguments: Any) -> Any:
        monkeypatch.setattr(scheduled_runs, "check_submission", check)
        scheduled_runs.run_due_schedule(cluster.services, partition)
        return check(*arguments)

    monkeypatch.setattr(scheduled_runs, "check_submission", check_behind_rival)
    scheduled_runs.run_due_schedule(cluster.services, partition)
    assert outcomes(cluster) == [("submitted", NEXT_MS, 1)]
    assert experiments(cluster) == [1]


@pytest.mark.parametrize("happens", [False, True])
def test_lost_answer_of_a_commit_submits_one_experiment(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, happens: bool
) -> None:
    schedule(cluster)
    table = cluster.services.table
    commit = table.commit

    def lose_answer(writes: Sequence[Write]) -> None:
        monkeypatch.setattr(table, "commit", commit)
        if happens:
            commit(writes)
        raise Unavailable

    monkeypatch.setattr(table, "commit", lose_answer)
    with pytest.raises(Unavailable):
        tick(cluster, NEXT_MS)
    tick(cluster, NEXT_MS + 60_000)
    assert experiments(cluster) == [1]
    assert outcomes(cluster) == [("submitted", NEXT_MS, 1)]


def test_change_during_a_run_wins(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule(cluster)
    check = submission.check_submission

    def check_behind_pause(*arguments: Any) -> Any:
        pause_schedule(cluster.services, 1, no_extra_writes)
        return check(*arguments)

    monkeypatch.setattr(scheduled_runs, "check_submission", check_behind_pause)
    tick(cluster, NEXT_MS)
    assert (experiments(cluster), read(cluster).next_ms) == ([], None)


def test_deletion_during_a_run_submits_nothing(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule(cluster)
    check = submission.check_submission

    def check_behind_deletion(*arguments: Any) -> Any:
        delete_schedule(cluster.services.table, 1, no_extra_writes)
        return check(*arguments)

    monkeypatch.setattr(scheduled_runs, "check_submission", check_behind_deletion)
    tick(cluster, NEXT_MS)
    assert experiments(cluster) == []
    assert cluster.services.table.get(time_key(1)) is None


def test_refused_submission_is_recorded_and_the_schedule_continues(cluster: Cluster) -> None:
    template = TemplateRecord("base", "max_restarts: 2", "", 1, 1, "ada")
    put_template(cluster.services.table, template, ADA, no_extra_writes)
    schedule(cluster, template="base")
    delete_template(cluster.services.table, "base", ADA, no_extra_writes)
    tick(cluster, NEXT_MS)
    [run] = read(cluster).runs
    assert (run.outcome, run.time_ms, run.experiment_id) == ("refused", NEXT_MS, None)
    assert "base" in run.text
    put_template(cluster.services.table, template, ADA, no_extra_writes)
    tick(cluster, NEXT_MS + DAY_MS)
    assert outcomes(cluster)[0] == ("submitted", NEXT_MS + DAY_MS, 1)


@pytest.mark.parametrize(
    ("overlap", "expected"),
    [
        ("skip", [("skipped", NEXT_MS + DAY_MS, None), ("submitted", NEXT_MS, 1)]),
        ("allow", [("submitted", NEXT_MS + DAY_MS, 2), ("submitted", NEXT_MS, 1)]),
    ],
)
def test_overlap_decides_about_running_experiments(
    cluster: Cluster, overlap: str, expected: list[object]
) -> None:
    schedule(cluster, {"overlap": overlap})
    tick(cluster, NEXT_MS)
    tick(cluster, NEXT_MS + DAY_MS)
    assert outcomes(cluster) == expected


def test_ended_experiment_does_not_overlap(cluster: Cluster) -> None:
    schedule(cluster)
    tick(cluster, NEXT_MS)
    cluster.services.engine.execute_command(addresses.experiment(1), KillRequested())
    tick(cluster, NEXT_MS + DAY_MS)
    assert outcomes(cluster)[0] == ("submitted", NEXT_MS + DAY_MS, 2)


def test_missed_times_are_told_once(cluster: Cluster) -> None:
    schedule(cluster)
    # The times on three days passed: the last one 5 hours ago.
    for _ in range(2):
        tick(cluster, NEXT_MS + 2 * DAY_MS + 5 * HOUR_MS)
    [run] = read(cluster).runs
    assert (run.outcome, run.time_ms) == ("missed", NEXT_MS)
    assert run.text.startswith("3 times passed")
    assert experiments(cluster) == []
    assert read(cluster).next_ms == NEXT_MS + 3 * DAY_MS


def test_catching_up_submits_one_experiment(cluster: Cluster) -> None:
    schedule(cluster, {"catch_up": True})
    tick(cluster, NEXT_MS + 2 * DAY_MS + 5 * HOUR_MS)
    assert outcomes(cluster) == [
        ("submitted", NEXT_MS + 2 * DAY_MS, 1),
        ("missed", NEXT_MS, None),
    ]


def test_time_runs_up_to_ten_minutes_late(cluster: Cluster) -> None:
    schedule(cluster)
    tick(cluster, NEXT_MS + 10 * 60_000)
    assert outcomes(cluster) == [("submitted", NEXT_MS, 1)]
    tick(cluster, NEXT_MS + DAY_MS + 10 * 60_000 + 1)
    assert outcomes(cluster)[0] == ("missed", NEXT_MS + DAY_MS, None)


def test_many_missed_times_are_counted_up_to_a_limit(cluster: Cluster) -> None:
    schedule(cluster, {"cron": "* * * * *"})
    tick(cluster, NOW_MS + 7 * DAY_MS)
    # The last minute is on time.
    assert [run.outcome for run in read(cluster).runs] == ["submitted", "missed"]
    assert read(cluster).runs[1].text.startswith("at least 1000 times")


def test_record_keeps_the_last_runs(cluster: Cluster) -> None:
    schedule(cluster, {"overlap": "allow"})
    for day in range(25):
        tick(cluster, NEXT_MS + day * DAY_MS)
    assert [run.experiment_id for run in read(cluster).runs] == list(range(25, 5, -1))


def test_passes_without_services_leave_the_time(cluster: Cluster) -> None:
    schedule(cluster)
    cluster.clock.ms = NEXT_MS
    Maintenance(cluster.services.engine).redrive_mail()
    assert experiments(cluster) == []
    tick(cluster)
    assert experiments(cluster) == [1]


def test_older_releases_leave_the_time(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    schedule(cluster)
    cluster.clock.ms = NEXT_MS
    # An older release has no such rows, and reads the row as an actor's.
    with monkeypatch.context() as older:
        older.setattr(due_rows, "SCHEDULE_TIME", replace(SCHEDULE_TIME, key="other#X / P#time"))
        process_due_rows(cluster.services.engine)
    assert "cannot be advanced" in caplog.text
    tick(cluster)
    assert experiments(cluster) == [1]


def test_runs_of_newer_releases_are_read() -> None:
    record = ScheduleRecord(1, "a", "ada", "@daily", "UTC", "skip", False, 1, 2)
    run = ScheduledRun(1, "submitted", 2)
    body = SCHEDULE_CODEC.encode(replace(record, runs=(run,)))
    newer = body.replace(b'"submitted", 2, ""]', b'"submitted", 2, "", {"new": 1}]')
    assert newer != body
    assert SCHEDULE_CODEC.decode(newer).runs == (run,)
