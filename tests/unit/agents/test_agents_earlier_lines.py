"""Lines of a log that are read backwards."""

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from control_plane.agents.log_lines import LogLinePage, find_earlier_lines
from control_plane.agents.log_scan import PIECE_BYTES, LineFilter, LogLine, LogPosition
from tests.unit.agents.test_agents_log_lines import TRIAL, Logs, logs, texts

__all__ = ["logs"]

END = 2**53


def find_before(
    logs: Logs, before: int = END, *, ended: bool = True, limit: int = 100, level: str | None = None
) -> LogLinePage:
    return find_earlier_lines(
        logs.trial_logs,
        TRIAL,
        max(logs.sizes, default=1),
        before,
        ended=ended,
        line_filter=LineFilter(level=level),
        limit=limit,
    )


def all_before(logs: Logs, limit: int, level: str | None = None) -> list[LogLine]:
    """Read all lines of a log, beginning with the last page."""
    lines: list[LogLine] = []
    page = find_before(logs, limit=limit, level=level)
    while True:
        lines = page.lines + lines
        if page.start == 0:
            return lines
        earlier = find_before(logs, page.start, limit=limit, level=level)
        assert earlier.start < page.start
        page = earlier


def test_last_lines_come_first(logs: Logs) -> None:
    logs.write(b"".join(b"%d\n" % n for n in range(10)))
    page = find_before(logs, limit=4)
    # Each line has two bytes, and the log 20.
    assert (texts(page.lines), page.start, page.size, page.is_end) == (list("6789"), 12, 20, True)
    earlier = find_before(logs, page.start, limit=4)
    assert (texts(earlier.lines), earlier.start, earlier.is_end) == (list("2345"), 4, False)
    assert earlier.next == LogPosition(12)


def test_empty_log_has_no_earlier_lines(logs: Logs) -> None:
    assert find_before(logs) == LogLinePage([], 0, LogPosition(0), True, 0)


def test_unfinished_last_line_of_a_growing_log_is_left_for_later(logs: Logs) -> None:
    logs.write(b"one\nhalf")
    page = find_before(logs, ended=False)
    assert (texts(page.lines), page.next) == (["one"], LogPosition(4))
    logs.write(b" done\n")
    assert texts(logs.find(page.next).lines) == ["half done"]
    assert texts(find_before(logs).lines) == ["one", "half done"]


def test_moving_progress_bar_is_found_backwards(logs: Logs) -> None:
    logs.write(b"begin\n\r 10%\r 20%")
    page = find_before(logs, ended=False)
    assert [(line.text, line.unfinished) for line in page.lines] == [
        ("begin", False),
        ("\r 10%", True),
    ]
    # The text after the last carriage return, at 11, may still change.
    assert page.next == LogPosition(11)


def test_earlier_lines_of_former_allocations_are_found(logs: Logs) -> None:
    logs.write(b"a\nbroken off", epoch=1)
    logs.write(b"begun anew\n", epoch=2)
    assert texts(all_before(logs, 1)) == ["a", "broken off", "begun anew"]


def test_search_backwards_passes_blocks_without_matches(logs: Logs) -> None:
    logs.write(b"ERROR: first\n")
    for _ in range(40):
        logs.write(b"nothing of interest\n" * 2_000)
    # 1.6 MB exceed the bytes of a page, so that some pages are empty.
    assert find_before(logs, level="ERROR").lines == []
    assert texts(all_before(logs, 5, level="ERROR")) == ["ERROR: first"]


def test_pieces_of_a_long_line_are_read_backwards_without_a_gap(logs: Logs) -> None:
    text = "x" + "\u20ac" * (10 * PIECE_BYTES)
    logs.write(f"a\n{text}\nb\n".encode())
    lines = texts(all_before(logs, 3))
    assert (lines[0], "".join(lines[1:-1]), lines[-1]) == ("a", text, "b")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(
    lines=st.lists(st.text(alphabet="ab\u20ac", max_size=30), max_size=12),
    cuts=st.lists(st.integers(1, 200), max_size=6, unique=True),
    limit=st.integers(1, 5),
)
def test_pages_backwards_have_the_lines_of_pages_forwards(
    lines: list[str], cuts: list[int], limit: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    log = Logs(tmp_path_factory.mktemp("logs"))
    content = "".join(f"{line}\n" for line in lines).encode()
    edges = [0, *sorted(cut for cut in cuts if cut < len(content)), len(content)]
    for start, end in pairwise(edges):
        if start < end:
            log.write(content[start:end])
    assert all_before(log, limit) == log.all(limit)
    log.table.close()
