"""Lines of a period in the logs of several trials."""

from typing import Any

from control_plane.agents.log_scan import LineFilter, LogPosition
from control_plane.agents.log_slices import DISORDER_MS, LOOKUPS_MAX, SliceSearch
from control_plane.agents.sessions import LogChunk
from tests.unit.agents.test_agents_log_lines import TRIAL, Logs, logs

__all__ = ["logs"]

START = LogPosition()


def search_all(logs: Logs, *, limit: int = 100, ended: bool = True, **filters: Any) -> list[str]:
    """Return the texts of all lines of the trial, from search to search."""
    found: list[str] = []
    position: LogPosition | None = START
    while position is not None:
        search = SliceSearch(logs.trial_logs, LineFilter(**filters), limit)
        position = search.read_trial(TRIAL, max(logs.sizes), position, ended=ended)
        found += [line.text for _, line in search.lines]
    return found


def test_period_selects_lines_of_all_allocations(logs: Logs) -> None:
    logs.write(b"a\n", 1_000)
    logs.write(b"b\n", 200_000)
    logs.write(b"c\n", 400_000, epoch=2)
    logs.write(b"d\n", 600_000, epoch=2)
    assert search_all(logs) == ["a", "b", "c", "d"]
    assert search_all(logs, limit=1) == ["a", "b", "c", "d"]
    assert search_all(logs, since_ms=150_000, until_ms=450_000) == ["b", "c"]
    assert search_all(logs, since_ms=700_000) == []


def test_search_ends_at_the_limit_of_lines(logs: Logs) -> None:
    logs.write(b"a\nb\nc\n")
    search = SliceSearch(logs.trial_logs, LineFilter(), 2)
    assert search.read_trial(TRIAL, 1, START, ended=True) == LogPosition(4)
    assert search.is_over


def test_growing_line_is_left_for_later(logs: Logs) -> None:
    logs.write(b"a\nhalf", 1_000)
    assert search_all(logs, ended=False) == ["a"]
    assert search_all(logs, ended=True) == ["a", "half"]


def test_period_in_a_long_log_is_found_without_reading_the_log(logs: Logs) -> None:
    # A chunk is smaller than the text of an index row, and a chunk arrives every 90 s.
    step_ms = DISORDER_MS * 3 // 2
    texts = [b"line %3d\n" % n + b"x" * 1_014 + b"\n" for n in range(300)]
    chunks = [
        LogChunk(f"{TRIAL}.1", n * 1_024, text, ((n * 1_024, 1_000 + n * step_ms),))
        for n, text in enumerate(texts)
    ]
    for first in range(0, 300, 100):
        batch = chunks[first : first + 100]
        logs.table.commit([logs.trial_logs.store_chunk(TRIAL, chunk) for chunk in batch])
    logs.sizes[1] = 300 * 1_024
    for place in (0, 1, 150, 299):
        logs.trial_logs.reads.clear()
        time_ms = 1_000 + place * step_ms
        found = search_all(logs, since_ms=time_ms, until_ms=time_ms)
        assert found == [f"line {place:3}", "x" * 1_014]
        # Chunks of other times are not read, except the end of the chunk before.
        assert len(logs.trial_logs.reads) <= 4


def test_search_stops_after_the_limit_of_bytes(logs: Logs) -> None:
    for _ in range(12):
        logs.write(b"nothing\n" * 10_000, 1_000)
    search = SliceSearch(logs.trial_logs, LineFilter(search="absent"), 10)
    assert search.read_trial(TRIAL, 1, START, ended=True) is not None
    assert search.is_over
    # The log has 960 KB, and a search reads 512 KiB and the rest of a chunk.
    assert search_all(logs, search="absent") == []


def test_search_stops_after_the_limit_of_lookups(logs: Logs) -> None:
    logs.write(b"a\n", 1_000)
    search = SliceSearch(logs.trial_logs, LineFilter(since_ms=10**9), 10)
    # Each allocation costs a lookup, also an allocation without a log.
    assert search.read_trial(TRIAL, LOOKUPS_MAX - 1, START, ended=True) is None
    assert not search.is_over
    assert search.read_trial(TRIAL, 1, START, ended=True) is None
    assert search.is_over
