"""Progress on stderr, for what takes over a second on a terminal; nothing anywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from detcloud.cli.terminal import bar, cut, is_live, width_of

# What is over within a second needs no bar.
SHOWN_AFTER_SECONDS = 1.0
REDRAWN_AFTER_SECONDS = 0.1


class Progress:
    """A line that is drawn again in place and wiped at the end."""

    def __init__(self, label: str, unit: Callable[[int], str] = str) -> None:
        self._label = label
        self._unit = unit
        self._is_live = is_live(sys.stderr)
        self._started_seconds = time.monotonic()
        self._drawn_seconds = 0.0

    def update(self, done: int, total: int = 0) -> None:
        """Draws `label [###---] 3 of 12`, without a bar and a total where `total` is 0."""
        if not self._is_due(done == total > 0):
            return
        if total:
            self._draw(f"{bar(done / total)} {self._unit(done)} of {self._unit(total)}")
        else:
            self._draw(self._unit(done))

    def tell(self, text: str) -> None:
        """Draws `label text 12 s`: what a wait is for, and how long it has been."""
        if self._is_due(False):
            self._draw(f"{text} {time.monotonic() - self._started_seconds:.0f} s")

    def close(self) -> None:
        """Wipes the line."""
        if self._drawn_seconds:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._drawn_seconds = 0.0

    def _is_due(self, is_last: bool) -> bool:
        now = time.monotonic()
        if not self._is_live or now - self._started_seconds < SHOWN_AFTER_SECONDS:
            return False
        if now - self._drawn_seconds < REDRAWN_AFTER_SECONDS and not is_last:
            return False
        self._drawn_seconds = now
        return True

    def _draw(self, text: str) -> None:
        line = cut(f"{self._label} {text}", (width_of(sys.stderr) or 80) - 1)
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)


@contextmanager
def progress(label: str, unit: Callable[[int], str] = str) -> Iterator[Progress]:
    """A progress line for the time of the block; `unit` words an amount."""
    shown = Progress(label, unit)
    try:
        yield shown
    finally:
        shown.close()
