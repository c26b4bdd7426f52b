"""The search of a trial's log for lines that match log policies."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from typing import Any

import pytest

from detcloud.agent.allocation import log_watch
from detcloud.agent.allocation.agent_report import AgentReport
from detcloud.agent.allocation.allocation import Allocation
from detcloud.agent.allocation.directory import AllocationDirectory
from detcloud.agent.allocation.log_watch import (
    LINE_BYTES_MAX,
    LINE_CHARACTERS_MAX,
    RECORD_KIND,
    LogWatch,
)
from detcloud.agent.processes.runtime import ProcessRuntime
from detcloud.agent.runtime import Phase, Status

OOM = {"name": "CUDA OOM", "pattern": ".*CUDA out of memory.*", "signal": "CUDA OOM"}
NUMBERS = {"pattern": r"\d+ errors?", "actions": ["cancel_retries"]}
LOG_BYTES_MAX = 1 << 20


class WatchedLog:
    """A log watch with its log and report."""

    def __init__(
        self, directory: AllocationDirectory, *policies: Any, bytes_max: int = LOG_BYTES_MAX
    ) -> None:
        self.directory = directory
        self.report = AgentReport(directory.report)
        self.watch = LogWatch(directory, {"log_policies": [*policies]}, self.report, bytes_max)

    def write(self, text: bytes) -> None:
        with self.directory.log.open("ab") as log:
            log.write(text)

    def lines(self) -> list[tuple[str, str]]:
        """Return the policy and the line of each record."""
        return [
            (record.get("name", record["pattern"]), record["line"])
            for record in self.report.records()
            if record["kind"] == RECORD_KIND
        ]


def test_first_matching_line_of_policy_is_recorded(directory: AllocationDirectory) -> None:
    one = WatchedLog(directory, OOM, NUMBERS)
    one.write(b"begins\nE: CUDA out of memory (1)\nE: CUDA out of memory (2)\n3 errors\n4 errors\n")
    assert one.watch.search(ended=False)
    assert one.lines() == [
        ("CUDA OOM", "E: CUDA out of memory (1)"),
        (NUMBERS["pattern"], "3 errors"),
    ]
    [first, second] = one.report.records()
    assert (first["signal"], first["rank"], "actions" in first) == ("CUDA OOM", 0, False)
    assert second["actions"] == ["cancel_retries"]


def test_line_is_matched_across_reads(directory: AllocationDirectory) -> None:
    one = WatchedLog(directory, OOM)
    one.write(b"E: CUDA out ")
    one.watch.search(ended=False)
    one.write(b"of memory")
    one.watch.search(ended=False)
    assert one.lines() == []
    one.write(b" (3)\n")
    one.watch.search(ended=False)
    assert one.lines() == [("CUDA OOM", "E: CUDA out of memory (3)")]


def test_last_line_is_matched_at_the_end(directory: AllocationDirectory) -> None:
    one = WatchedLog(directory, OOM)
    one.write(b"CUDA out of memory")
    assert one.watch.search(ended=False)
    assert one.lines() == []
    assert one.watch.search(ended=True)
    assert one.lines() == [("CUDA OOM", "CUDA out of memory")]


@pytest.mark.parametrize("pattern", [r"\sError", r"(^|\s)Error", r"\s\d+%", r"\nError", r"[\r\n]x"])
def test_pattern_with_an_end_of_line_ends(directory: AllocationDirectory, pattern: str) -> None:
    one = WatchedLog(directory, {"name": "any", "pattern": pattern})
    one.write(b"a\nError b\n5%\nx\n")
    assert one.watch.search(ended=False)
    matches = [] if pattern != r"(^|\s)Error" else [("any", "Error b")]
    assert one.lines() == matches


def test_carriage_return_separates_lines(directory: AllocationDirectory) -> None:
    one = WatchedLog(directory, {"name": "bar", "pattern": "^2 errors$"})
    one.write(b"1 error\r2 errors\r3 errors")
    one.watch.search(ended=False)
    assert one.lines() == [("bar", "2 errors")]


def test_rank_is_not_part_of_line(directory: AllocationDirectory) -> None:
    one = WatchedLog(directory, {"name": "start", "pattern": "^CUDA"})
    one.write(b"[rank=3] CUDA out of memory\n")
    one.watch.search(ended=False)
    [record] = one.report.records()
    assert (record["line"], record["rank"]) == ("CUDA out of memory", 3)


@pytest.mark.parametrize(
    "line",
    [
        b"[detcloud] the policy CUDA out of memory\n",
        b"[rank=1] [detcloud] CUDA out of memory\n",
        b'{"log_policies": [{"pattern": ".*CUDA out of memory.*"}]}\n',
        b"'log_policies': [('.*CUDA out of memory.*', None)]\n",
    ],
)
def test_own_lines_and_configurations_are_skipped(
    directory: AllocationDirectory, line: bytes
) -> None:
    one = WatchedLog(directory, OOM)
    one.write(line)
    one.watch.search(ended=True)
    assert one.lines() == []


def test_reported_line_is_cut_and_has_no_login(directory: AllocationDirectory) -> None:
    one = WatchedLog(directory, {"name": "a", "pattern": "fetch"}, {"name": "b", "pattern": "yy"})
    one.write(b"fetch https://user:hunter2@host/x?token=abc\nx" + b"y" * 10_000 + b"\n")
    one.watch.search(ended=False)
    [(_, first), (_, second)] = one.lines()
    assert "hunter2" not in first
    assert "abc" not in first
    assert len(second) == LINE_CHARACTERS_MAX


def test_only_the_beginning_of_long_line_is_compared(directory: AllocationDirectory) -> None:
    one = WatchedLog(directory, OOM)
    one.write(b"x" * LINE_BYTES_MAX + b"CUDA out of memory\n")
    assert one.watch.search(ended=True)
    assert one.lines() == []
    one.write(b"CUDA out of memory\n")
    one.watch.search(ended=True)
    assert len(one.lines()) == 1


def test_invalid_bytes_do_not_prevent_match(directory: AllocationDirectory) -> None:
    one = WatchedLog(directory, OOM)
    one.write(b"\xff\xfe CUDA out of memory \xc3\n")
    one.watch.search(ended=False)
    assert one.lines() == [("CUDA OOM", "?? CUDA out of memory ?")]


def test_restarted_agent_reports_no_line_twice(directory: AllocationDirectory) -> None:
    one = WatchedLog(directory, OOM, NUMBERS)
    one.write(b"CUDA out of memory\n")
    one.watch.search(ended=False)
    again = WatchedLog(directory, OOM, NUMBERS)
    again.write(b"CUDA out of memory\n1 error\n")
    again.watch.search(ended=False)
    assert again.lines() == [("CUDA OOM", "CUDA out of memory"), (NUMBERS["pattern"], "1 error")]


def test_line_is_found_again_after_full_disk(
    directory: AllocationDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = WatchedLog(directory, OOM)
    one.write(b"CUDA out of memory\n")

    def fail(*_: object) -> int:
        raise OSError("no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", fail)
        with pytest.raises(OSError, match="no space"):
            one.watch.search(ended=False)
    assert one.watch.search(ended=False)
    assert one.lines() == [("CUDA OOM", "CUDA out of memory")]


def test_log_beyond_its_limit_is_not_searched(directory: AllocationDirectory) -> None:
    one = WatchedLog(directory, OOM, bytes_max=1_000)
    one.write(b"x" * 999 + b"\n" + b"CUDA out of memory\n")
    assert one.watch.search(ended=True)
    assert one.lines() == []


@pytest.mark.parametrize("policy", [{"name": "a", "pattern": "(a"}, {"name": "a", "pattern": 3}, 7])
def test_unusable_policy_does_not_hide_others(directory: AllocationDirectory, policy: Any) -> None:
    one = WatchedLog(directory, policy, OOM)
    one.write(b"CUDA out of memory\n")
    one.watch.search(ended=False)
    assert one.lines() == [("CUDA OOM", "CUDA out of memory")]


@pytest.mark.parametrize("spec", [None, {}, {"log_policies": "x"}, {"log_policies": []}])
def test_nothing_is_searched_without_policies(directory: AllocationDirectory, spec: Any) -> None:
    report = AgentReport(directory.report)
    directory.log.write_bytes(b"CUDA out of memory\n")
    assert LogWatch(directory, spec, report, LOG_BYTES_MAX).search(ended=True)
    assert report.size == 0


def test_expensive_pattern_is_dropped_with_notice(
    directory: AllocationDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_watch, "WORK_MAX", 2_000)
    one = WatchedLog(directory, {"name": "slow", "pattern": "(a|b)*a(a|b){12}c"}, OOM)
    one.write(bytes(Random(0).choices(b"ab", k=10_000)) + b"\nCUDA out of memory\n")
    assert one.watch.search(ended=False)
    assert one.lines() == [("CUDA OOM", "CUDA out of memory")]
    assert b"the log policy slow is not used any more" in directory.log.read_bytes()


def test_long_log_delays_exit_for_limited_time(
    directory: AllocationDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_watch, "SCAN_SECONDS", -1)
    one = WatchedLog(directory, OOM)
    one.write((b"x" * 63 + b"\n") * 4_096)
    assert not one.watch.search(ended=True)
    monkeypatch.setattr(log_watch, "END_SECONDS_MAX", -1)
    assert one.watch.search(ended=True)
    assert b"is not compared with log policies" in directory.log.read_bytes()


class EndedRuntime(ProcessRuntime):
    """A runtime whose launches have all failed with exit code 1."""

    def poll(self, folder: Path) -> Status:
        return Status(Phase.ENDED, code=1, stage="trial")

    def remove(self, folder: Path) -> None:
        """Leave the folder as it is."""


def kinds(directory: AllocationDirectory) -> list[str]:
    return [record["kind"] for record in AgentReport(directory.report).records()]


def test_match_is_recorded_before_exit(directory: AllocationDirectory) -> None:
    directory.write_spec({"log_policies": [OOM]})
    directory.log.write_bytes(b"CUDA out of memory")
    Allocation.adopt(directory, EndedRuntime()).poll()
    assert kinds(directory) == [RECORD_KIND, "container", "exited"]


def test_exit_waits_for_search(
    directory: AllocationDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.write_spec({"log_policies": [OOM]})
    directory.log.write_bytes((b"x" * 63 + b"\n") * 4_096 + b"CUDA out of memory")
    allocation = Allocation.adopt(directory, EndedRuntime())
    with monkeypatch.context() as patched:
        patched.setattr(log_watch, "SCAN_SECONDS", -1)
        allocation.poll()
        assert allocation.is_active
        assert kinds(directory) == []
    allocation.poll()
    assert not allocation.is_active
    assert sorted(kinds(directory)) == ["container", "exited", RECORD_KIND]
    assert kinds(directory)[-1] == "exited"
