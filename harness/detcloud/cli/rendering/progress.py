"""Progress lines on a terminal's stderr. No line is drawn during the first second or into
a file.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from detcloud.cli.rendering.terminal import is_live, progress_bar, terminal_width, truncate

# Work that takes less than a second needs no bar.
SHOWN_AFTER_SECONDS = 1.0
REDRAWN_AFTER_SECONDS = 0.1


class Progress:
    """A progress line that is redrawn in place and erased at the end.

    `clock` returns seconds that never decrease.
    """

    def __init__(
        self,
        label: str,
        unit: Callable[[int], str] = str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._label = label
        self._unit = unit
        self._clock = clock
        self._is_live = is_live(sys.stderr)
        self._started_seconds = clock()
        self._drawn_seconds = 0.0

    def update(self, done: int, total: int = 0) -> None:
        """Draw `label [###---] 3 of 12` on stderr, or `label 3` if `total` is 0.

        Nothing is drawn in the first second, or if stderr is not a live terminal. Afterwards, a
        line is drawn at most every REDRAWN_AFTER_SECONDS. The last line, where `done` equals
        `total`, needs no such pause. `unit` makes the texts of the amounts.
        """
        if not self._is_due(done == total > 0):
            return
        if total:
            self._draw(f"{progress_bar(done / total)} {self._unit(done)} of {self._unit(total)}")
        else:
            self._draw(self._unit(done))

    def show_wait(self, text: str) -> None:
        """Draw `label text 12 s` on stderr, with the seconds since the progress line was created.

        Nothing is drawn in the first second, without a live terminal, or within
        REDRAWN_AFTER_SECONDS of the last line.
        """
        if self._is_due(False):
            self._draw(f"{text} {self._clock() - self._started_seconds:.0f} s")

    def close(self) -> None:
        """Erase the drawn line. Do nothing if no line was drawn."""
        if self._drawn_seconds:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._drawn_seconds = 0.0

    def _is_due(self, is_last: bool) -> bool:
        """Return whether to draw now, and if so, record the time of drawing. False without a live
        terminal and in the first second.

        Args:
            is_last: whether the line is drawn even shortly after the previous line.
        """
        now = self._clock()
        if not self._is_live or now - self._started_seconds < SHOWN_AFTER_SECONDS:
            return False
        if now - self._drawn_seconds < REDRAWN_AFTER_SECONDS and not is_last:
            return False
        self._drawn_seconds = now
        return True

    def _draw(self, text: str) -> None:
        """Write the label and a text over the drawn line on stderr, cut to the width of the
        terminal, and flush.
        """
        line = truncate(f"{self._label} {text}", (terminal_width(sys.stderr) or 80) - 1)
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)


@contextmanager
def show_progress(
    label: str,
    unit: Callable[[int], str] = str,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Progress]:
    """Provide a progress line on stderr during the block, and erase the line at the end, also after
    an error.

    Without a live terminal, and in a block shorter than a second, nothing is drawn.

    Args:
        label: the text at the beginning of the line.
        unit: returns the text for an amount, such as `3 files`; by default the bare number.
        clock: returns seconds that never decrease.
    """
    progress = Progress(label, unit, clock)
    try:
        yield progress
    finally:
        progress.close()
