"""Lines of a trial's log, filtered by the cluster."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detcloud.client.records import LogLine
    from detcloud.client.requester import Requester

LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
PAGE_LINES = 500


@dataclass(frozen=True)
class LogFilter:
    """A filter of log lines. A field that is None matches every line."""

    since_ms: int | None = None
    """Only lines from this time on, in epoch milliseconds."""
    until_ms: int | None = None
    """Only lines before this time, in epoch milliseconds."""
    rank: int | None = None
    """Only lines of the process with this rank."""
    level: str | None = None
    """Only lines of this level of LEVELS or a higher one. A line without a level counts as INFO."""
    search: str | None = None
    """Only lines that contain this text in upper or lower case."""


class LogCursor:
    """A position in a trial's log, from which each `read` continues.

    The position moves by pages. `complete` becomes True when the last page has been read and the
    log cannot grow.
    """

    def __init__(self, client: Requester, trial_id: int, line_filter: LogFilter) -> None:
        self._client = client
        self._path = f"/trials/{trial_id}/logs/lines"
        self._query = asdict(line_filter)
        # The cursor of the next page, and the offset of the last line read.
        self._place: tuple[str | None, int] = (None, -1)
        self.complete = False

    def read(self) -> Iterator[LogLine]:
        """Yield the lines after this position up to the present end of the log, and move the
        position.

        The position moves past a page, and `complete` is set, before the page's lines are yielded.
        If the caller stops the iteration within a page, later calls do not yield the page's other
        lines. After an error, the position is after the last page that was read.
        """
        for page in self._read_pages():
            yield from page

    def read_last(self, count: int) -> Iterator[LogLine]:
        """Yield the last lines, and move the position to the present end of the log.

        Lines before this position are not counted. If the caller stops the iteration, later calls
        do not yield the other lines of the page that was being read.

        Args:
            count: the number of lines.
        """
        # The position before each of the last pages, and the page's number of lines.
        pages = deque([(self._place, 0)])
        lines = 0
        before = self._place
        for page in self._read_pages():
            if page:
                pages.append((before, len(page)))
                lines += len(page)
            while len(pages) > 1 and lines - pages[0][1] >= count:
                lines -= pages.popleft()[1]
            before = self._place
        self._place, self.complete = pages[0][0], False
        yield from islice(self.read(), max(0, lines - count), None)

    def _read_pages(self) -> Iterator[list[LogLine]]:
        """Yield a list of new lines for each page up to the present end of the log.

        A list may be empty. `complete` and the position are updated before each yield. Raises
        ApiError and Unreachable.
        """
        while not self.complete:
            after, offset = self._place
            answer = self._client.get(self._path, **self._query, after=after, limit=PAGE_LINES)
            # If the last page was not followed by another, its cursor is used again, and the page
            # repeats lines that were read before.
            page = [line for line in answer["items"] if line["offset"] > offset]
            cursor = answer["next_cursor"] or after
            self.complete = answer["complete"]
            self._place = (cursor, page[-1]["offset"] if page else offset)
            yield page
            if cursor == after:
                return


def read_lines(cursor: LogCursor, pause: Callable[[], None] | None) -> Iterator[LogLine]:
    """Yield the lines after the cursor's position.

    With None as `pause`, stop at the present end of the log. Otherwise call `pause` and read again
    until the log is complete. If the caller stops the iteration, the cursor may have moved past
    lines that were not yielded, as with `LogCursor.read`. Raises ApiError and Unreachable.
    """
    yield from cursor.read()
    while pause is not None and not cursor.complete:
        pause()
        yield from cursor.read()
