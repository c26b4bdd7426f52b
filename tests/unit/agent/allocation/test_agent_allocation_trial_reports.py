"""Report files as hostile trials write them: torn lines, links, pipes, garbage, huge files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from detcloud.agent.allocation.trial_reports import (
    FILE_BYTES_MAX,
    LINE_BYTES_MAX,
    LOOK_BYTES_MAX,
    ReportReader,
    parse_line,
)


@pytest.fixture
def out_folder(tmp_path: Path) -> Path:
    directory = tmp_path / "out"
    directory.mkdir()
    return directory


def report(out_folder: Path, rank: int = 0) -> Path:
    return out_folder / f"report-{rank}.jsonl"


def test_lines_are_read_up_to_the_last_newline(out_folder: Path) -> None:
    # Two lines of 12 bytes and a newline, so 13 bytes each, then a torn line.
    report(out_folder).write_bytes(b'{"kind":"a"}\n{"kind":"b"}\n{"ki')
    reader = ReportReader(out_folder)
    lines = reader.read_lines("0", 0)
    assert [(line.kind, line.offset) for line in lines] == [("a", 13), ("b", 26)]
    assert reader.read_lines("0", 26) == []
    with report(out_folder).open("ab") as file:
        file.write(b'nd":"c"}\n')
    assert [line.kind for line in reader.read_lines("0", 26)] == ["c"]


def test_a_small_budget_returns_a_single_line(out_folder: Path) -> None:
    report(out_folder).write_bytes(b'{"kind":"a"}\n{"kind":"b"}\n')
    assert [line.kind for line in ReportReader(out_folder).read_lines("0", 0, bytes_max=5)] == ["a"]


def test_writers_are_sorted_plain_ranks(out_folder: Path) -> None:
    names = ("report-10.jsonl", "report-2.jsonl", "report-agent.jsonl", "report-007.jsonl", "x")
    for name in names:
        (out_folder / name).touch()
    assert ReportReader(out_folder).writers() == ["2", "10"]


def test_only_the_first_64_writers_count(out_folder: Path) -> None:
    for rank in range(70):
        report(out_folder, rank).touch()
    assert ReportReader(out_folder).writers() == [str(rank) for rank in range(64)]


def test_symbolic_links_are_not_followed(out_folder: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b'{"kind":"secret"}\n')
    report(out_folder).symlink_to(secret)
    assert ReportReader(out_folder).read_lines("0", 0) == []


def test_hard_links_are_not_read(out_folder: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b'{"kind":"secret"}\n')
    os.link(secret, report(out_folder))
    assert ReportReader(out_folder).read_lines("0", 0) == []


def test_a_link_in_place_of_out_is_not_followed(out_folder: Path, tmp_path: Path) -> None:
    report(out_folder).write_bytes(b'{"kind":"a"}\n')
    link = tmp_path / "link"
    link.symlink_to(out_folder)
    reader = ReportReader(link)
    assert reader.writers() == []
    assert reader.read_lines("0", 0) == []


def test_pipes_and_directories_are_ignored(out_folder: Path) -> None:
    os.mkfifo(report(out_folder, 0))
    report(out_folder, 1).mkdir()
    reader = ReportReader(out_folder)
    assert reader.read_lines("0", 0) == []
    assert reader.read_lines("1", 0) == []
    assert reader.last_record("0", "exit") is None


def test_a_truncated_file_is_read_after_growing_past_the_offset(out_folder: Path) -> None:
    report(out_folder).write_bytes(b'{"kind":"a"}\n')
    reader = ReportReader(out_folder)
    assert reader.read_lines("0", 20) == []
    report(out_folder).write_bytes(b'{"kind":"a"}\n{"kind":"b"}\n{"kind":"c"}\n')
    # Offset 20 lies inside the second line: the rest of the line is no JSON.
    assert [line.kind for line in reader.read_lines("0", 20)] == ["agent_warning", "c"]


def test_a_replaced_file_is_read_by_offset(out_folder: Path) -> None:
    report(out_folder).write_bytes(b'{"kind":"a"}\n')
    reader = ReportReader(out_folder)
    reader.read_lines("0", 0)
    report(out_folder).rename(out_folder / "report-0.jsonl.old")
    report(out_folder).write_bytes(b'{"kind":"A"}\n{"kind":"b"}\n')
    assert [line.kind for line in reader.read_lines("0", 13)] == ["b"]


@pytest.mark.parametrize(
    "raw",
    [
        b"nonsense",
        b"[1]",
        b"\xff\xfe",
        b'{"a": NaN}',
        b"[" * 100_000,
        b"1" * 5000,
        b"",
        rb'{"a": "\ud800"}',
        rb'{"\udfff": 1}',
    ],
    ids=["words", "list", "bytes", "nan", "open", "long-number", "empty", "half", "half-key"],
)
def test_malformed_line_becomes_a_warning_at_its_offset(raw: bytes) -> None:
    line = parse_line(raw, 77)
    assert (line.kind, line.offset) == ("agent_warning", 77)
    assert line.warning
    assert len(line.raw) < 500


@pytest.mark.parametrize("depth", [65, 150, 196, 200, 230, 254, 260, 1100, 60_000])
def test_deeply_nested_line_becomes_a_warning(depth: int) -> None:
    # The line is the outermost of the `depth` objects.
    raw = b'{"a":' * depth + b'"NaN"' + b"}" * depth
    line = parse_line(raw[: 256 * 1024], 77)
    assert (line.kind, line.offset) == ("agent_warning", 77)
    assert "nested more than 64 levels deep" in line.warning or depth == 60_000


def test_line_of_maximum_depth_with_unicode_passes() -> None:
    raw = b'{"a":' * 64 + rb'"\u00e9 \ud83d\ude00"' + b"}" * 64
    line = parse_line(raw, 77)
    assert (line.raw, line.warning) == (raw, "")


def test_an_overlong_line_is_replaced_and_the_next_line_is_read(out_folder: Path) -> None:
    # The end of the line lies beyond a piece of 4 MiB, and is written later.
    size = 6 << 20
    report(out_folder).write_bytes(b"x" * size)
    reader = ReportReader(out_folder)
    assert reader.read_lines("0", 0) == []
    with report(out_folder).open("ab") as file:
        file.write(b'\n{"kind":"b"}\n')
    (warning,) = reader.read_lines("0", 0)
    assert (warning.kind, warning.offset) == ("agent_warning", size + 1)
    assert str(size) in warning.fields["message"]
    assert [line.kind for line in reader.read_lines("0", warning.offset)] == ["b"]


def test_the_first_read_finds_the_end_of_an_overlong_line(out_folder: Path) -> None:
    # The exit record is sent after the last line, so an empty result must mean the end of the file.
    size = 9 << 20
    report(out_folder).write_bytes(b"x" * size + b'\n{"kind":"exit"}\n')
    (warning,) = ReportReader(out_folder).read_lines("0", 0)
    assert (warning.kind, warning.offset) == ("agent_warning", size + 1)


def make_sparse_file(path: Path, size: int, content: bytes = b"", end: bytes = b"") -> None:
    """Create a sparse file of `size` bytes that begins with `content` and ends with `end`."""
    with path.open("wb") as file:
        file.write(content)
        file.truncate(size)
        file.seek(size - len(end))
        file.write(end)


@pytest.mark.parametrize("end", [b"", b'\n{"kind":"exit"}\n'], ids=["without an end", "with one"])
def test_a_huge_sparse_file_costs_few_reads(
    out_folder: Path, bytes_read: list[int], end: bytes
) -> None:
    make_sparse_file(report(out_folder), 8 << 40, b'{"kind":"a"}\n', end)
    reader = ReportReader(out_folder)
    assert [line.kind for line in reader.read_lines("0", 0)] == ["a"]
    (warning,) = reader.read_lines("0", 13)
    assert (warning.kind, warning.offset) == ("agent_warning", FILE_BYTES_MAX)
    # A new process of the agent continues by the offset alone.
    assert ReportReader(out_folder).read_lines("0", warning.offset) == []
    assert reader.last_record("0", "exit") == ({"kind": "exit"} if end else None)
    assert sum(bytes_read) <= 8 << 20


def test_bytes_read_of_an_endless_line_are_limited(out_folder: Path, bytes_read: list[int]) -> None:
    report(out_folder).write_bytes(b"x" * (2 * LOOK_BYTES_MAX + 7) + b'\n{"kind":"b"}\n')
    reader = ReportReader(out_folder)
    kinds, offset = [], 0
    while lines := reader.read_lines("0", offset):
        assert sum(bytes_read) <= LOOK_BYTES_MAX + LINE_BYTES_MAX + 1
        bytes_read.clear()
        kinds += [line.kind for line in lines]
        offset = lines[-1].offset
    # Two pieces of 16 MiB, the remaining seven bytes, and the next line.
    assert kinds == ["agent_warning"] * 3 + ["b"]


def test_a_file_is_read_only_up_to_the_limit(out_folder: Path) -> None:
    make_sparse_file(report(out_folder), 8 << 40)
    reader = ReportReader(out_folder)
    offset = FILE_BYTES_MAX - 5
    (warning,) = reader.read_lines("0", offset)
    assert (warning.offset, "at most 16 GiB" in warning.warning) == (FILE_BYTES_MAX, True)
    assert reader.read_lines("0", FILE_BYTES_MAX) == []
    assert reader.read_lines("0", FILE_BYTES_MAX + 1) == []


def test_lines_before_the_limit_of_a_file_are_read(out_folder: Path) -> None:
    lines = b'\n{"kind":"a"}\n{"kind":"b"}\n'
    # The last byte of the last line lies behind the limit.
    make_sparse_file(report(out_folder), FILE_BYTES_MAX + 1, end=lines)
    offset = FILE_BYTES_MAX + 2 - len(lines)
    read = ReportReader(out_folder).read_lines("0", offset)
    assert [line.kind for line in read] == ["a", "agent_warning"]
    assert read[-1].offset == FILE_BYTES_MAX


def test_a_growing_endless_line_is_read_once(out_folder: Path, bytes_read: list[int]) -> None:
    reader = ReportReader(out_folder)
    report(out_folder).write_bytes(b"x" * (2 << 20))
    assert reader.read_lines("0", 0) == []
    assert sum(bytes_read) == (2 << 20) + LINE_BYTES_MAX + 1
    bytes_read.clear()
    assert reader.read_lines("0", 0) == []
    # The search resumes at the known end of the file.
    assert sum(bytes_read) == 0


def test_a_line_search_resumes_after_the_allowed_bytes(out_folder: Path) -> None:
    report(out_folder).write_bytes(b"x" * (9 << 20) + b'\n{"kind":"b"}\n')
    reader = ReportReader(out_folder)
    # Pieces of 4 MiB are read: the first call searches the first piece, the second call the second.
    assert reader.read_lines("0", 0, look_bytes_max=1) == []
    assert reader.read_lines("0", 0, look_bytes_max=1) == []
    assert reader.read_lines("0", 0, look_bytes_max=0) == []
    (warning,) = reader.read_lines("0", 0, look_bytes_max=1)
    assert (warning.kind, warning.offset) == ("agent_warning", (9 << 20) + 1)
    assert reader.skipped_bytes == (9 << 20) + len(b'\n{"kind":"b"}\n')


def test_a_line_of_exactly_the_limit_passes(out_folder: Path) -> None:
    filler = "x" * (LINE_BYTES_MAX - len('{"kind":""}'))
    report(out_folder).write_text(f'{{"kind":"{filler}"}}\n')
    (line,) = ReportReader(out_folder).read_lines("0", 0)
    assert line.kind == filler


def test_the_last_exit_line_is_found_after_many_lines(out_folder: Path) -> None:
    exits = b'{"kind":"exit","reason":"idle"}\n{"kind":"exit","reason":"preempted"}\n'
    report(out_folder).write_bytes(b'{"kind":"metrics"}\n' * 60_000 + exits)
    last_exit = ReportReader(out_folder).last_record("0", "exit")
    assert last_exit is not None
    assert last_exit["reason"] == "preempted"


@pytest.mark.parametrize(
    ("raw", "urgent"),
    [
        (b'{"kind":"metrics","group":"training"}', False),
        (b'{"kind":"metrics","group":"validation"}', True),
        (b'{"kind":"rank_metrics","group":"validation"}', False),
        (b'{"kind":"progress"}', False),
        (b'{"kind":"completed"}', True),
        (b'{"kind":"checkpoint"}', True),
        (b'{"kind":"exit"}', True),
        (b'{"kind":"something new"}', True),
    ],
)
def test_training_metrics_are_not_urgent_and_decisions_are(raw: bytes, urgent: bool) -> None:
    assert parse_line(raw, 1).is_urgent is urgent
