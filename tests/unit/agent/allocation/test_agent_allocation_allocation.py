from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from detcloud.agent.allocation.allocation import Allocation
from detcloud.agent.allocation.directory import AllocationDirectory
from detcloud.agent.allocation.failure_fingerprint import failure_fingerprint
from detcloud.agent.allocation.forwarded_reports import ForwardedReports
from detcloud.agent.allocation.limits import (
    LOOK_BYTES_BURST,
    SCAN_BYTES,
    SCANNED_BYTES_MAX,
    WARNINGS_MAX,
)
from detcloud.agent.allocation.trial_log import NULS_MAX
from detcloud.agent.allocation.trial_reports import ReportReader
from detcloud.agent.assignment.assignment import LaunchImpossible
from detcloud.agent.processes.runtime import ProcessRuntime
from detcloud.agent.runtime import Phase, Status
from detcloud.shared.notices import Notice


def test_older_directives_are_ignored_and_the_notice_is_kept(
    directory: AllocationDirectory,
) -> None:
    allocation = Allocation(directory, ProcessRuntime())
    allocation.apply_directives({"revision": 5, "length": 100})
    allocation.apply_directives({"revision": 4, "length": 50})
    allocation.notify(Notice(2000, "spot"))
    allocation.apply_directives({"revision": 6, "length": 200, "preempt": None})
    assert directory.read_directives() == {
        "revision": 6,
        "length": 200,
        "preempt": {"deadline_ms": 2000, "reason": "spot"},
    }


def test_a_flood_of_lines_is_throttled(directory: AllocationDirectory) -> None:
    allocation = Allocation(directory, ProcessRuntime())
    allocation.charge_lines(4000)
    assert not allocation.is_throttled
    # 9,000 lines at once exceed the burst of 5,000 and the refill of a moment.
    allocation.charge_lines(5000)
    assert allocation.is_throttled


def test_an_agent_of_a_gang_sends_whole_lines_until_the_end(tmp_path: Path) -> None:
    directory = AllocationDirectory(tmp_path / "allocations", "4.1")
    directory.create()
    directory.write_spec({"nodes": 2})
    allocation = Allocation(directory, ProcessRuntime(None))
    directory.log.write_text("one\ntwo")
    # The last three of seven bytes are an incomplete line, held back only if the piece is not full.
    assert allocation.read_log(100) == (0, "one\n", False)
    assert allocation.read_log(2) == (0, "on", True)
    allocation.record_failure("lost", "gone")
    assert allocation.read_log(100) == (0, "one\ntwo", False)


def test_a_log_is_cut_at_a_hole(directory: AllocationDirectory) -> None:
    allocation = Allocation(directory, ProcessRuntime(None))
    directory.log.write_bytes(b"before\n")
    os.truncate(directory.log, 256 << 20)
    sent = ""
    for _ in range(9):
        offset, text, _ = allocation.read_log(NULS_MAX)
        assert offset == len(sent)
        sent += text
        allocation.log.acked = len(sent)
    # The NUL bytes fill the rest of the 64 KiB piece that begins with the line.
    assert sent.rstrip("\n").endswith("[detcloud] the rest of the log is not forwarded")
    assert sent.count("\0") == NULS_MAX - len("before\n")


def test_a_few_null_bytes_do_not_cut_a_log(directory: AllocationDirectory) -> None:
    allocation = Allocation(directory, ProcessRuntime(None))
    content = bytes(NULS_MAX - 1) + b"after\n"
    directory.log.write_bytes(content)
    assert allocation.read_log(len(content)) == (0, content.decode(), False)


def test_bytes_searched_in_endless_lines_are_limited(directory: AllocationDirectory) -> None:
    reader = ReportReader(directory.out)
    # No time passes, so the burst is never refilled.
    reports = ForwardedReports(directory, reader, clock=lambda: 0.0)
    for rank in range(8):
        (directory.out / f"report-{rank}.jsonl").write_bytes(b"x" * (9 << 20))
    for _ in range(3):
        assert list(reports.scan({})) == []
        for writer in reader.writers():
            assert reports.read_running(writer, 0, 1 << 20) == []
    # The burst, and a piece of 4 MiB that began within the burst.
    assert LOOK_BYTES_BURST <= reader.skipped_bytes <= LOOK_BYTES_BURST + (4 << 20)


def test_scans_rotate_over_writers(directory: AllocationDirectory) -> None:
    reports = ForwardedReports(directory, ReportReader(directory.out))
    writers = SCANNED_BYTES_MAX // SCAN_BYTES

    def write_lines() -> None:
        for writer in range(3 * writers):
            with (directory.out / f"report-{writer}.jsonl").open("a") as file:
                file.write(f'{{"kind":"{writer}","note":"{"x" * SCAN_BYTES}"}}\n')

    for first in (0, writers, 2 * writers):
        # All writers have new lines, and each scan reaches another third of the writers.
        write_lines()
        reached = {line.kind for lines in reports.scan({}) for line in lines}
        assert reached == {str(writer) for writer in range(first, first + writers)}


def send_all(allocation: Allocation) -> list[str]:
    """Return the kinds of the lines for a call; assert that a second read has identical kinds."""
    lines = allocation.lines("0", None, 1 << 20)
    assert [line.kind for line in allocation.lines("0", None, 1 << 20)] == [x.kind for x in lines]
    return [line.kind for line in lines]


def test_skipped_lines_are_noted_in_the_trial_log(
    directory: AllocationDirectory,
) -> None:
    allocation = Allocation(directory, ProcessRuntime())
    deep = '{"a":' * 200 + '"NaN"' + "}" * 200
    reports = directory.out / "report-0.jsonl"
    reports.write_text(f'{{"kind":"progress"}}\nnonsense\n{deep}\n{{"kind":"metrics"}}\n')
    directory.log.write_text("printed\nby the trial")
    assert send_all(allocation) == ["progress", "agent_warning", "agent_warning", "metrics"]
    printed, by_trial, first, second = directory.log.read_text().splitlines()
    assert (printed, by_trial) == ("printed", "by the trial")
    assert first.startswith("[detcloud] out/report-0.jsonl: a line was skipped, it is not JSON")
    assert "'nonsense'" in first
    assert "nested more than 64 levels deep" in second


def test_refused_line_is_replaced_and_noted_once(
    directory: AllocationDirectory,
) -> None:
    allocation = Allocation(directory, ProcessRuntime())
    (directory.out / "report-0.jsonl").write_text('{"kind":"a"}\n{"kind":"b"}\n')
    for _ in range(2):
        allocation.replace_refused("0", 13)
    assert send_all(allocation) == ["agent_warning", "b"]
    assert directory.log.read_text().count("the cluster refused a line") == 1


def test_number_of_notices_in_the_log_is_limited(directory: AllocationDirectory) -> None:
    allocation = Allocation(directory, ProcessRuntime())
    (directory.out / "report-0.jsonl").write_text("nonsense\n" * 1000)
    assert send_all(allocation) == ["agent_warning"] * 1000
    *notices, last = directory.log.read_text().splitlines()
    assert len(notices) == WARNINGS_MAX
    assert "are not reported here" in last


def test_notices_are_not_written_through_a_link_or_pipe(
    directory: AllocationDirectory, tmp_path: Path
) -> None:
    allocation = Allocation(directory, ProcessRuntime())
    (directory.out / "report-0.jsonl").write_text("nonsense\n")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("theirs")
    directory.log.unlink()
    directory.log.symlink_to(elsewhere)
    assert send_all(allocation) == ["agent_warning"]
    directory.log.unlink()
    os.mkfifo(directory.log)
    with pytest.raises(OSError, match="not a regular file"):
        directory.write_notices(["x"])
    assert elsewhere.read_text() == "theirs"


class FailedRuntime(ProcessRuntime):
    """A runtime whose trial has failed."""

    def poll(self, directory: Path) -> Status:
        return Status(Phase.ENDED, "trial", 1)

    def remove(self, directory: Path) -> None:
        pass


def test_exit_of_a_failed_trial_has_a_fingerprint(directory: AllocationDirectory) -> None:
    directory.log.write_text(
        'Traceback (most recent call last):\n  File "a.py", line 1, in f\nValueError: 1\n'
    )
    allocation = Allocation.adopt(directory, FailedRuntime())
    allocation.poll()
    record = allocation.lines("agent", 0, 1 << 20)[-1].fields
    assert record["reason"] == "errored"
    assert record["fingerprint"] == failure_fingerprint(directory.log.read_text())


@pytest.mark.parametrize(
    ("kinds", "is_lasting"),
    [
        ([], True),
        # `core.init` reports the environment, after which main functions import modules.
        (["environment", "alert"], True),
        (["environment", "metrics"], False),
        (["checkpoint_load_failure"], False),
    ],
)
def test_wrong_import_before_the_training_is_lasting(
    directory: AllocationDirectory, kinds: list[str], *, is_lasting: bool
) -> None:
    directory.log.write_text("ModuleNotFoundError: No module named 'nope'\n")
    lines = [json.dumps({"kind": kind}) + "\n" for kind in kinds]
    (directory.path / "out").mkdir(exist_ok=True)
    (directory.path / "out/report-0.jsonl").write_text("".join(lines))
    allocation = Allocation.adopt(directory, FailedRuntime())
    allocation.poll()
    record = allocation.lines("agent", 0, 1 << 20)[-1].fields
    assert record.get("lasting", False) is is_lasting


@pytest.mark.parametrize("is_lasting", [False, True])
def test_impossible_launch_is_recorded_as_lasting(
    directory: AllocationDirectory, *, is_lasting: bool
) -> None:
    def prepare() -> Callable[[], None]:
        raise LaunchImpossible("no such image", is_lasting=is_lasting)

    allocation = Allocation(directory, ProcessRuntime(None))
    allocation.launch(prepare)
    record = allocation.lines("agent", 0, 1 << 20)[-1].fields
    assert record["reason"] == "errored"
    assert record.get("lasting", False) is is_lasting
