"""Lines of a trial's log, chosen by the cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detcloud.client.client import Client
    from detcloud.client.records import LogLine

LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
PAGE_LINES = 500


@dataclass(frozen=True)
class LogFilter:
    """Filter of log lines; a field that is None lets every line through.

    Attributes:
        since_ms, until_ms: epoch milliseconds, the second excluded.
        rank: of the process that wrote the line.
        level: the lowest of LEVELS; a line without a level counts as INFO.
        search: a text the line holds, in capitals or not.
    """

    since_ms: int | None = None
    until_ms: int | None = None
    rank: int | None = None
    level: str | None = None
    search: str | None = None


class LogCursor:
    """Reads the lines of one trial from where it stopped; `complete` once no more can come."""

    def __init__(self, client: Client, trial_id: int, line_filter: LogFilter) -> None:
        self._client = client
        self._path = f"/trials/{trial_id}/logs/lines"
        self._query = asdict(line_filter)
        self._cursor: str | None = None
        self._offset = -1
        self.complete = False

    def read(self) -> Iterator[LogLine]:
        """Yield the lines that are new, in order."""
        while not self.complete:
            page = self._client.get(self._path, **self._query, after=self._cursor, limit=PAGE_LINES)
            # A page that is asked for twice, since nothing followed it, may begin as before.
            for line in page["items"]:
                if line["offset"] > self._offset:
                    self._offset = line["offset"]
                    yield line
            self.complete = page["complete"]
            before, self._cursor = self._cursor, page["next_cursor"] or self._cursor
            if self._cursor == before:
                return


def read_lines(cursor: LogCursor, pause: Callable[[], None] | None) -> Iterator[LogLine]:
    """Yield every line that fits, in order; with `pause`, called between reads, until the end."""
    yield from cursor.read()
    while pause is not None and not cursor.complete:
        pause()
        yield from cursor.read()
