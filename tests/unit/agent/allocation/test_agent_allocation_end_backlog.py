"""The backlog of an ended trial: a limited number of lines, all checkpoints, and a notice."""

from __future__ import annotations

import json
import os

import pytest

from detcloud.agent.allocation.allocation import Allocation
from detcloud.agent.allocation.directory import AllocationDirectory
from detcloud.agent.allocation.end_backlog import (
    ENDED_LIMITS,
    KILLED_LIMITS,
    BacklogLimits,
    EndBacklog,
)
from detcloud.agent.allocation.trial_log import KILLED_LOG_BYTES_MAX, LOG_NOTICES_BYTES_MAX
from detcloud.agent.allocation.trial_reports import ReportLine, ReportReader
from detcloud.agent.processes.runtime import ProcessRuntime
from detcloud.agent.sync.payload import pack_payload

TRAINING = '{"kind":"metrics","group":"training","metrics":{"loss":1}}\n'
CHECKPOINT = '{"kind":"checkpoint","uuid":"%d"}\n'


def read_all(backlog: EndBacklog, bytes_max: int = 1000) -> list[ReportLine]:
    """Return all lines; read each piece twice, as after a failed call, and compare the offsets."""
    lines: list[ReportLine] = []
    offset = 0
    while piece := backlog.lines("0", offset, bytes_max):
        again = backlog.lines("0", offset, bytes_max)
        assert [line.offset for line in again] == [line.offset for line in piece]
        lines += piece
        offset = piece[-1].offset
    return lines


def write_reports(directory: AllocationDirectory, text: str) -> None:
    (directory.out / "report-0.jsonl").write_text(text)


def test_a_backlog_of_minutes_is_sent_completely_after_an_exit(
    directory: AllocationDirectory,
) -> None:
    write_reports(directory, TRAINING * 12_000)
    backlog = EndBacklog(ReportReader(directory.out), {})
    assert (backlog.left_out, backlog.notice) == (0, "")
    assert len(read_all(backlog, 1 << 20)) == 12_000


def test_backlog_keeps_checkpoints_and_validations_and_counts_the_rest(
    directory: AllocationDirectory,
) -> None:
    validation = TRAINING.replace("training", "validation")
    text = TRAINING * 20 + "".join(CHECKPOINT % n + TRAINING for n in range(50)) + validation
    write_reports(directory, text + CHECKPOINT % 50)
    limits = BacklogLimits(lines=10, bytes=8 << 20)
    backlog = EndBacklog(ReportReader(directory.out), {}, limits)
    lines = read_all(backlog)
    offsets = [line.offset for line in lines]
    assert offsets == sorted(set(offsets))
    assert [line.fields["uuid"] for line in lines if line.kind == "checkpoint"] == [
        str(n) for n in range(51)
    ]
    assert [line.kind for line in lines[:10]] == ["metrics"] * 10
    assert [line.kind for line in lines[-3:]] == ["agent_warning", "metrics", "checkpoint"]
    assert backlog.left_out == 60
    assert lines[-3].fields["message"] == backlog.notice
    assert backlog.notice.startswith("60 lines are omitted")
    # Every offset is the end of a line, so that a later agent can continue from any offset.
    content = text.encode()
    assert all(content[offset - 1 : offset] == b"\n" for offset in offsets[:-1])


@pytest.mark.parametrize("line", [CHECKPOINT % 1, TRAINING, "nonsense\n", "\n"])
def test_backlog_of_a_flood_is_limited(directory: AllocationDirectory, line: str) -> None:
    limits = BacklogLimits(lines=100, bytes=8 << 20, kept_lines=100, searched_bytes=5000)
    write_reports(directory, line * 6_000)
    os.truncate(directory.out / "report-0.jsonl", 8 << 40)
    lines = read_all(EndBacklog(ReportReader(directory.out), {}, limits))
    assert len(lines) <= 201
    assert lines[-1].kind == "agent_warning"


@pytest.mark.parametrize("limits", [ENDED_LIMITS, KILLED_LIMITS], ids=["ended", "killed"])
@pytest.mark.parametrize("dot", [b"x", b'\n{"kind":"metrics"}\n'], ids=["a line", "many lines"])
def test_bytes_read_of_a_sparse_file_are_limited(
    directory: AllocationDirectory, bytes_read: list[int], dot: bytes, limits: BacklogLimits
) -> None:
    # A byte in every 4 MiB: no hole is long enough to be skipped, and the file takes little room.
    for writer in range(3):
        with (directory.out / f"report-{writer}.jsonl").open("wb") as file:
            for place in range(1_000):
                file.seek(place * (4 << 20))
                file.write(dot)
            file.truncate(1_000 << 30)
    backlog = EndBacklog(ReportReader(directory.out), {}, limits)
    assert backlog.is_unread
    # 64 MiB are sent and 64 MiB are searched; each byte is read at most three times.
    assert sum(bytes_read) <= 6 * (64 << 20)


def send_everything(allocation: Allocation) -> tuple[list[str], str]:
    """Pack and acknowledge calls until nothing is left; return the kinds of lines and the log."""
    kinds: list[str] = []
    text = ""
    while not (payload := pack_payload([allocation])).is_empty:
        kinds += [json.loads(entry)["line"]["kind"] for entry in payload.reports]
        text += "".join(json.loads(entry)["text"] for entry in payload.logs)
        sent = {writer: offset for (_, writer), offset in payload.sent.items()}
        log_acked = sent.pop("log", allocation.log.acked)
        allocation.acknowledge({**(allocation.acked or {}), **sent}, log_acked)
    return kinds, text


@pytest.mark.parametrize("killed_first", [True, False], ids=["a kill", "a kill after the end"])
def test_killed_trial_ends_after_few_lines_and_a_notice(
    directory: AllocationDirectory, killed_first: bool
) -> None:
    write_reports(directory, TRAINING * (KILLED_LIMITS.lines + 290) + CHECKPOINT % 1 + TRAINING)
    allocation = Allocation(directory, ProcessRuntime())
    allocation.acknowledge({}, 0)
    if killed_first:
        allocation.kill(0)
    allocation.record_failure("killed", "gone")
    allocation.kill(0)
    kinds, text = send_everything(allocation)
    assert kinds == ["metrics"] * KILLED_LIMITS.lines + ["checkpoint", "agent_warning", "exited"]
    assert text.count("[detcloud] out/: 291 lines are omitted") == 1


def test_forwarded_part_of_a_huge_log_is_limited(directory: AllocationDirectory) -> None:
    limit = 100_000
    allocation = Allocation(directory, ProcessRuntime(), limit)
    allocation.acknowledge({}, 0)
    directory.log.write_text("begun\n")
    os.truncate(directory.log, 8 << 40)
    _, text = send_everything(allocation)
    assert len(text) < limit + LOG_NOTICES_BYTES_MAX + 100
    assert text.startswith("begun\n")
    assert text.endswith("\n[detcloud] the rest of the log is not forwarded\n")


def test_rest_of_a_killed_trials_log_is_not_forwarded(directory: AllocationDirectory) -> None:
    allocation = Allocation(directory, ProcessRuntime())
    allocation.acknowledge({}, 0)
    directory.log.write_bytes(b"x" * (KILLED_LOG_BYTES_MAX + 5000))
    allocation.acknowledge({}, 4000)
    allocation.kill(0)
    allocation.record_failure("killed", "gone")
    offset, text, following = allocation.read_log(100)
    assert (offset, len(text), following) == (4000, 100, True)
    allocation.acknowledge({}, KILLED_LOG_BYTES_MAX + 3990)
    assert allocation.read_log(100)[1:] == ("x" * 10, True)
    allocation.acknowledge({}, KILLED_LOG_BYTES_MAX + 4000)
    offset, text, following = allocation.read_log(100)
    assert "not forwarded" in text
    assert not following
    allocation.acknowledge({}, offset + len(text))
    assert allocation.read_log(100) == (offset + len(text), "", False)
