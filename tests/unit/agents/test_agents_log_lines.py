"""Lines of a log: whole lines with time, rank and level."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from control_plane.agents.log_levels import parse_level
from control_plane.agents.log_lines import LogLinePage, find_lines
from control_plane.agents.log_scan import (
    PIECE_BYTES,
    SCANNED_BYTES_MAX,
    LineFilter,
    LogLine,
    LogPosition,
    parse_line,
)
from control_plane.agents.logs import SMALL_BYTES_MAX, IndexedChunk, TrialLogs
from control_plane.agents.sessions import LogChunk
from control_plane.objects.directory import DirectoryObjectStore
from control_plane.objects.signing import HmacUrlSigner
from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import Expect, Put

TRIAL = 7
START = LogPosition()


class RecordedLogs(TrialLogs):
    """Logs that record the start of each read."""

    def __init__(self, table: SqliteTable, objects: DirectoryObjectStore) -> None:
        super().__init__(table, objects)
        self.reads: list[int] = []

    def read_content(self, trial_id: int, chunk: IndexedChunk, start: int, end: int) -> bytes:
        self.reads.append(start)
        return super().read_content(trial_id, chunk, start, end)


class Logs:
    """A trial's log that is written in chunks."""

    def __init__(self, root: Path) -> None:
        self.table = SqliteTable(":memory:")
        self.trial_logs = RecordedLogs(
            self.table, DirectoryObjectStore(root, HmacUrlSigner(b"s" * 32))
        )
        self.sizes: dict[int, int] = {}

    def write(self, text: bytes, time_ms: int = 1, epoch: int = 1) -> None:
        offset = self.sizes.get(epoch, 0)
        chunk = LogChunk(f"{TRIAL}.{epoch}", offset, text, ((offset, time_ms),))
        self.table.commit((self.trial_logs.store_chunk(TRIAL, chunk),))
        self.sizes[epoch] = offset + len(text)

    def find(
        self, after: LogPosition = START, *, ended: bool = False, limit: int = 100, **filters: Any
    ) -> LogLinePage:
        return find_lines(
            self.trial_logs,
            TRIAL,
            max(self.sizes, default=1),
            after,
            ended=ended,
            line_filter=LineFilter(**filters),
            limit=limit,
        )

    def all(self, limit: int = 100, **filters: Any) -> list[LogLine]:
        """Find all lines of a trial that has ended, page after page."""
        lines: list[LogLine] = []
        place = LogPosition()
        while True:
            page = self.find(place, ended=True, limit=limit, **filters)
            lines += page.lines
            if page.is_end:
                return lines
            assert page.next != place or page.lines
            place = page.next


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[Logs]:
    made = Logs(tmp_path)
    yield made
    made.table.close()


def texts(lines: list[LogLine]) -> list[str]:
    return [line.text for line in lines]


def test_log_lines_span_chunks(logs: Logs) -> None:
    logs.write(b"one\ntw", 100)
    logs.write("ö\r\nth".encode()[:3], 200)
    logs.write("ö\r\nthree".encode()[3:], 300)
    page = logs.find()
    # "one" is at offset 0. "twö" is at 4 and began in the first chunk. "three" has no end yet.
    assert [(line.offset, line.time_ms, line.text) for line in page.lines] == [
        (0, 100, "one"),
        (4, 100, "twö"),
    ]
    assert (page.next, page.is_end) == (LogPosition(10), True)
    assert texts(logs.find(page.next, ended=True).lines) == ["three"]


def test_characters_span_chunks(logs: Logs) -> None:
    for byte in "a€b\n".encode():
        logs.write(bytes([byte]))
    assert texts(logs.find().lines) == ["a€b"]


def test_line_ends_with_the_allocation(logs: Logs) -> None:
    logs.write(b"broken off", epoch=1)
    logs.write(b"begun anew\n", epoch=2)
    assert [(line.offset, line.text) for line in logs.find().lines] == [
        (0, "broken off"),
        (10, "begun anew"),
    ]


def test_next_page_continues(logs: Logs) -> None:
    logs.write(b"".join(b"%d\n" % n for n in range(10)))
    first = logs.find(limit=4)
    assert (texts(first.lines), first.next, first.is_end) == (list("0123"), LogPosition(8), False)
    assert texts(logs.find(first.next).lines) == list("456789")


def test_long_line_is_cut_between_characters(logs: Logs) -> None:
    text = "x" + "€" * PIECE_BYTES
    logs.write(text.encode())
    pieces = texts(logs.all())
    # After the x, 16,383 bytes hold 5,461 signs of three bytes.
    assert len(pieces[0].encode()) == PIECE_BYTES
    assert len(pieces[1].encode()) == PIECE_BYTES - 1
    assert "".join(pieces) == text


def test_overwritten_part_of_progress_bar_is_found(logs: Logs) -> None:
    logs.write(b"begin\n\r 10%\r 20%", 100)
    page = logs.find()
    # The line begins at 6. The text after the last carriage return, at 11, may still change.
    assert [(line.offset, line.text, line.unfinished) for line in page.lines] == [
        (0, "begin", False),
        (6, "\r 10%", True),
    ]
    assert (page.next, page.is_end) == (LogPosition(11), True)
    assert logs.find(page.next).lines == []
    logs.write(b"\r 30%\n", 200)
    assert [(line.text, line.unfinished) for line in logs.find(page.next).lines] == [
        ("\r 20%\r 30%", False)
    ]
    assert texts(logs.all()) == ["begin", "\r 10%\r 20%\r 30%"]


def test_crlf_is_not_overwritten_text(logs: Logs) -> None:
    logs.write(b"one\r")
    page = logs.find()
    assert (page.lines, page.next) == ([], START)
    logs.write(b"\n")
    assert texts(logs.find(page.next).lines) == ["one"]


def test_search_reads_limited_bytes_and_chunks(logs: Logs) -> None:
    line = b"y" * 99 + b"\n"
    for _ in range(3):
        logs.write(line * (SCANNED_BYTES_MAX // 200))
    logs.write(b"needle\n")
    first = logs.find(search="NEEDLE")
    assert (first.lines, first.is_end) == ([], False)
    assert texts(logs.all(search="NEEDLE")) == ["needle"]


def test_chunks_outside_time_range_are_not_read(logs: Logs) -> None:
    for n in range(1, 6):
        logs.write(b"at %d\ncut %d" % (n, n) + b" goes on\n", 1000 * n)
    page = logs.find(since_ms=3000, until_ms=3999)
    assert texts(page.lines) == ["at 3", "cut 3 goes on"]
    # Chunks have 19 bytes. The third is at 38, and byte 37 shows that a line begins at 38.
    assert sorted(set(logs.trial_logs.reads)) == [37, 38]


def test_line_begun_in_skipped_chunk_is_omitted(logs: Logs) -> None:
    logs.write(b"early, and its e", 1000)
    logs.write(b"nd\nlate\nlast", 2000)
    logs.write(b" words\n", 3000)
    assert texts(logs.find(since_ms=2000).lines) == ["late", "last words"]
    assert texts(logs.find(until_ms=2000).lines) == ["early, and its end", "late", "last words"]


def test_search_after_skipped_chunks_starts_at_a_line(logs: Logs) -> None:
    logs.write(b"early, and its e", 1000)
    page = logs.find(since_ms=2000)
    assert page.next == LogPosition(16, True)
    logs.write(b"nd\nlate\n", 2000)
    assert texts(logs.find(page.next, since_ms=2000).lines) == ["late"]


def test_filters_by_rank_level_and_text(logs: Logs) -> None:
    logs.write(b"[rank=1] ERROR: lost\n[rank=0] INFO: begun\nWARNING:root:Begun\nplain\n")
    assert texts(logs.find(ranks=frozenset([1])).lines) == ["ERROR: lost"]
    assert texts(logs.find(ranks=frozenset([0])).lines) == [
        "INFO: begun",
        "WARNING:root:Begun",
        "plain",
    ]
    assert texts(logs.find(level="WARNING").lines) == ["ERROR: lost", "WARNING:root:Begun"]
    assert texts(logs.find(search="begun").lines) == ["INFO: begun", "WARNING:root:Begun"]


def test_line_without_level_counts_as_info(logs: Logs) -> None:
    logs.write(b"DEBUG: detail\nplain\nINFO: begun\nERROR: lost\n")
    assert texts(logs.find(level="INFO").lines) == ["plain", "INFO: begun", "ERROR: lost"]
    everything = ["DEBUG: detail", "plain", "INFO: begun", "ERROR: lost"]
    assert texts(logs.find(level="DEBUG").lines) == everything
    assert texts(logs.find(level="WARNING").lines) == ["ERROR: lost"]


def test_rows_of_first_releases_have_no_times(logs: Logs) -> None:
    # The first releases stored any text as an object.
    old = "old " * SMALL_BYTES_MAX
    logs.write(f"{old}\n".encode())
    [row] = logs.table.query(f"trial#{TRIAL}", "L#", "L$").rows
    logs.table.commit((Put(row.key, 1, b"%d" % (len(old) + 1), Expect.ANYTHING),))
    assert logs.find().lines == [LogLine(0, None, 0, None, old)]
    assert logs.find(since_ms=1).lines == []


def test_invalid_utf8_is_replaced() -> None:
    line = parse_line(b"[rank=12] \x1b[31m\x00\xff", 5, 9)
    assert line == LogLine(5, 9, 12, None, "\x1b[31m\x00\ufffd")


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("ERROR: x", "ERROR"),
        ("[WARNING] x", "WARNING"),
        ("WARN x", "WARNING"),
        ("FATAL: x", "CRITICAL"),
        ("WARNING:root:x", "WARNING"),
        ("2026-01-02 03:04:05,678 INFO x", "INFO"),
        ("2026-01-02T03:04:05.678Z [DEBUG] x", "DEBUG"),
        ("2026-01-02 03:04:05 - my.logger - INFO - x", "INFO"),
        ("[2026-01-02 03:04:05] [my.logger] [ERROR] x", "ERROR"),
        ("my.logger - CRITICAL - x", "CRITICAL"),
        ("2026-01-02 03:04:05.678 | TRACE    | x", "TRACE"),
        ("\x1b[32mINFO\x1b[0m: x", "INFO"),
        ("I0102 03:04:05.678 x", "INFO"),
        ("W0102 03:04:05.678 x", "WARNING"),
        ("error: no such file", "ERROR"),
        ("ValueError: INFO is bad", "ERROR"),
        ("torch.cuda.OutOfMemoryError: CUDA out of memory", "ERROR"),
        ("KeyboardInterrupt", "ERROR"),
        ("Exception: lost", "ERROR"),
        ("Traceback (most recent call last):", "ERROR"),
        ("  + Exception Group Traceback (most recent call last):", "ERROR"),
        ("[rank3]: Traceback (most recent call last):", "ERROR"),
        ("/code/train.py:12: UserWarning: slow", "WARNING"),
        ("Fatal Python error: Segmentation fault", "CRITICAL"),
        ("MeanSquaredError: 0.25", None),
        ("Error: 0.25", None),
        ("ValueErrors are rare", None),
        ("see UserWarning: slow", None),
        ("INFORMATION is here", None),
        ("this is an ERROR", None),
        ("errors: 5", None),
        ("", None),
    ],
)
def test_parses_levels_of_common_loggers(text: str, level: str | None) -> None:
    assert parse_level(text) == level


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    lines=st.lists(st.text(st.sampled_from("aé€😀\r "), max_size=12), max_size=8),
    cuts=st.lists(st.integers(0, 300), max_size=6),
    limit=st.integers(1, 5),
)
def test_lines_do_not_depend_on_chunks(
    lines: list[str], cuts: list[int], limit: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    logs = Logs(tmp_path_factory.mktemp("logs"))
    content = "".join(f"{line}\n" for line in lines).encode()
    edges = [0, *sorted(cut for cut in cuts if cut < len(content)), len(content)]
    for start, end in pairwise(edges):
        if start < end:
            logs.write(content[start:end])
    expected = [line.removesuffix("\r") for line in lines]
    assert texts(logs.all(limit)) == expected
    logs.table.close()


# Texts that filters search for in pieces of the log, texts that hide matches, and further texts.
WORDS = (
    *("ERROR", "WARN", "FATAL: ", "info: ", "warning: ", "I0102 03:04:05 ", "W0102 03:04:05 "),
    *("Traceback (most recent call last):", "KeyError: a", "a.py:1: UserWarning: b"),
    *("Fatal Python error: ", "[rank0]: "),
    *("[rank=1] ", "\x1b[31m", "Nee", "dle", "nEEdle", "é", " - ", "x", ": ", "\r"),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
@given(
    lines=st.lists(st.lists(st.sampled_from(WORDS), max_size=5).map("".join), max_size=8),
    level=st.sampled_from([None, "TRACE", "INFO", "WARNING", "ERROR", "CRITICAL"]),
    search=st.sampled_from(["", "NEEDLE", "r", "É", "[rank"]),
    limit=st.integers(1, 5),
)
def test_filter_finds_the_same_lines_as_parsing_each_line(
    lines: list[str],
    level: str | None,
    search: str,
    limit: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    logs = Logs(tmp_path_factory.mktemp("logs"))
    for line in lines:
        logs.write(f"{line}\n".encode())
    wanted = LineFilter(level=level, search=search)
    parsed = (parse_line(line.removesuffix("\r").encode(), 0, 1) for line in lines)
    expected = [line.text for line in parsed if line in wanted]
    assert texts(logs.all(limit, level=level, search=search)) == expected
    logs.table.close()
