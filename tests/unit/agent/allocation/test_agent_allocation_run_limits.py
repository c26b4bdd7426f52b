"""The limits of a run at the agent: warnings in the log, and the end of an idle run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from detcloud.agent.allocation import allocation as allocation_module
from detcloud.agent.allocation.allocation import Allocation
from detcloud.agent.allocation.directory import AllocationDirectory
from detcloud.agent.allocation.run_limits import LimitWatch, Outcome, RunLimits
from detcloud.agent.processes.runtime import ProcessRuntime
from detcloud.agent.runtime import Phase, Status
from detcloud.shared.use_mark import UseMark, read_use_ms

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
NOTHING = Outcome()


@pytest.mark.parametrize(
    ("fields", "limits"),
    [
        (None, None),
        ({}, None),
        ([1], None),
        ({"ends_ms": "soon", "idle_timeout_ms": True}, None),
        ({"ends_ms": 5, "idle_timeout_ms": 0}, RunLimits(ends_ms=5)),
        ({"idle_timeout_ms": 7}, RunLimits(idle_timeout_ms=7)),
        ({"trial_idle_timeout_ms": 7}, RunLimits(idle_timeout_ms=7, is_experiment=True)),
    ],
)
def test_invalid_limits_of_a_specification_are_ignored(fields: Any, limits: object) -> None:
    assert RunLimits.of_spec({"run_limits": fields}) == limits
    assert RunLimits.of_spec(None) is None


def test_first_node_alone_watches_a_gang_of_an_experiment() -> None:
    fields = {"ends_ms": 9, "trial_idle_timeout_ms": 7}
    first = RunLimits.of_spec({"run_limits": fields, "node_rank": 0})
    assert first == RunLimits(9, 7, is_experiment=True)
    assert RunLimits.of_spec({"run_limits": fields, "node_rank": 1}) == RunLimits(ends_ms=9)


def test_end_of_the_run_is_announced_once() -> None:
    watch = LimitWatch(RunLimits(ends_ms=HOUR_MS), 0)
    assert watch.check(HOUR_MS - 5 * MINUTE_MS - 1) == NOTHING
    text = "this run ends in 5 min, because it comes to its max_duration"
    assert watch.check(HOUR_MS - 5 * MINUTE_MS) == Outcome(text)
    # The cluster ends the run.
    assert watch.check(2 * HOUR_MS) == NOTHING


def test_terminal_that_opens_late_learns_of_the_end() -> None:
    watch = LimitWatch(RunLimits(ends_ms=HOUR_MS), 0)
    # The terminals that are open now get the warning of `check`.
    assert watch.end_warning(HOUR_MS - MINUTE_MS) == ""
    watch.check(HOUR_MS - 4 * MINUTE_MS)
    text = "this run ends in 3 min, because it comes to its max_duration"
    assert watch.end_warning(HOUR_MS - 3 * MINUTE_MS) == text
    assert LimitWatch(RunLimits(idle_timeout_ms=HOUR_MS), 0).end_warning(HOUR_MS) == ""


def test_idle_run_ends_after_a_warning() -> None:
    watch = LimitWatch(RunLimits(idle_timeout_ms=HOUR_MS), 0)
    assert watch.check(55 * MINUTE_MS - 1) == NOTHING
    warning = watch.check(55 * MINUTE_MS).warning
    assert warning == "this run has been idle for 55 min, and ends in 5 min if nobody uses it"
    assert watch.check(HOUR_MS - 1) == NOTHING
    assert watch.check(HOUR_MS) == Outcome(end_reason="it was idle for 60 min (idle_timeout)")


def test_use_after_the_warning_begins_again() -> None:
    watch = LimitWatch(RunLimits(idle_timeout_ms=HOUR_MS), 0)
    assert watch.check(55 * MINUTE_MS).warning
    watch.note_use(56 * MINUTE_MS, 56 * MINUTE_MS)
    # Older uses change nothing, and a clock ahead of this one counts as now.
    watch.note_use(0, 57 * MINUTE_MS)
    assert watch.check(HOUR_MS) == NOTHING
    watch.note_use(99 * HOUR_MS, HOUR_MS)
    assert watch.check(115 * MINUTE_MS - 1) == NOTHING
    assert watch.check(115 * MINUTE_MS).warning


def test_grace_follows_the_warning_also_after_a_pause_of_the_machine() -> None:
    watch = LimitWatch(RunLimits(idle_timeout_ms=MINUTE_MS), 0)
    assert watch.check(9 * HOUR_MS).warning.endswith("ends in 30 s if nobody uses it")
    assert watch.check(9 * HOUR_MS + 29_999) == NOTHING
    assert watch.check(9 * HOUR_MS + 30_000).end_reason


def test_terminal_leaves_a_mark_in_the_home(tmp_path: Path) -> None:
    assert read_use_ms(tmp_path) == 0
    mark = UseMark(str(tmp_path))
    mark.touch()
    used_ms = read_use_ms(tmp_path)
    assert used_ms > 0
    UseMark(None).touch()
    # A link to a foreign file is not touched.
    other = tmp_path / "other"
    other.mkdir()
    (tmp_path / "foreign").touch()
    (other / "shell.used").symlink_to(tmp_path / "foreign")
    before = (tmp_path / "foreign").stat().st_mtime_ns
    UseMark(str(other)).touch()
    assert (tmp_path / "foreign").stat().st_mtime_ns == before


class FakeRuntime(ProcessRuntime):
    """A runtime whose trial runs until it is killed."""

    killed = False

    def poll(self, directory: Path) -> Status:
        if self.killed:
            return Status(Phase.ENDED, signal=15, killed=True, stage="trial")
        return Status(Phase.RUNNING)

    def kill(self, directory: Path, grace_ms: int, *, saves: bool = False) -> None:
        self.killed = True

    def remove(self, directory: Path) -> None:
        pass


def test_agent_ends_an_idle_allocation_with_the_reason(
    directory: AllocationDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = 0
    monkeypatch.setattr(allocation_module, "now_ms", lambda: now_ms)
    directory.write_spec({"run_limits": {"idle_timeout_ms": HOUR_MS}})
    # An agent that has started again reads the limits from the specification.
    allocation = Allocation.adopt(directory, FakeRuntime())
    # The trial begins in minute 30, and is used in minute 86, after the first warning.
    for minutes in (30, 84, 85, 86):
        now_ms = minutes * MINUTE_MS
        allocation.poll()
    text = "this run has been idle for 55 min, and ends in 5 min if nobody uses it"
    assert [allocation.take_limit_warning() for _ in range(2)] == [text, ""]
    assert allocation.end_warning() == ""
    allocation.note_use()
    for minutes in (90, 141, 145):
        now_ms = minutes * MINUTE_MS
        allocation.poll()
        assert allocation.is_needed
    now_ms = 146 * MINUTE_MS
    allocation.poll()
    assert not allocation.is_needed
    allocation.poll()
    record = allocation.lines("agent", 0, 1 << 20)[-1].fields
    assert (record["reason"], record["message"]) == (
        "idle",
        "it was idle for 60 min (idle_timeout)",
    )
    assert directory.log.read_text().count("[detcloud] this run has been idle for") == 2


def start_idle_trial(directory: AllocationDirectory) -> Allocation:
    directory.write_spec({"run_limits": {"trial_idle_timeout_ms": HOUR_MS}})
    return Allocation.adopt(directory, FakeRuntime())


def test_output_of_a_trial_counts_as_use(
    directory: AllocationDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = 0
    monkeypatch.setattr(allocation_module, "now_ms", lambda: now_ms)
    allocation = start_idle_trial(directory)
    report = directory.out / "report-0.jsonl"
    for minutes, path in ((50, directory.log), (100, report), (150, report)):
        now_ms = minutes * MINUTE_MS
        with path.open("a") as file:
            file.write("{}\n")
        allocation.poll()
        assert allocation.take_limit_warning() == ""
    # The warning in the log is no output of the trial.
    for minutes in (205, 207, 209):
        now_ms = minutes * MINUTE_MS
        allocation.poll()
    assert allocation.is_needed
    assert "printed and reported nothing for 55 min" in allocation.take_limit_warning()
    now_ms = 210 * MINUTE_MS
    allocation.poll()
    assert not allocation.is_needed


@pytest.mark.parametrize(("completes", "reason"), [(False, "idle"), (True, "completed")])
def test_trial_that_completes_in_the_grace_keeps_its_end(
    directory: AllocationDirectory,
    monkeypatch: pytest.MonkeyPatch,
    *,
    completes: bool,
    reason: str,
) -> None:
    now_ms = 0
    monkeypatch.setattr(allocation_module, "now_ms", lambda: now_ms)
    allocation = start_idle_trial(directory)
    for minutes in (0, 55, 60):
        now_ms = minutes * MINUTE_MS
        allocation.poll()
    assert not allocation.is_needed
    if completes:
        exit_line = {"kind": "exit", "reason": "completed", "code": 0}
        (directory.out / "report-0.jsonl").write_text(f"{json.dumps(exit_line)}\n")
    allocation.poll()
    record = allocation.lines("agent", 0, 1 << 20)[-1].fields
    assert record["reason"] == reason
    assert record.get("limit") == (None if completes else "idle_timeout")
