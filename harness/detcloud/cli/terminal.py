"""What a terminal can show: colours, its size, bars, and nothing that would steer it."""

from __future__ import annotations

import os
import shutil
import sys
import time
import unicodedata
from typing import TextIO

COLOURS = {"green": 32, "red": 31, "yellow": 33, "cyan": 36, "dim": 2, "bold": 1}
STATE_COLOURS = {
    "ACTIVE": "cyan",
    "RUNNING": "cyan",
    "COMPLETED": "green",
    "ERROR": "red",
    "CANCELED": "yellow",
    "PAUSED": "yellow",
}
BAR_CELLS = 20
# A download that is over within a second needs no bar.
BAR_AFTER_SECONDS = 1.0


def is_live(stream: TextIO) -> bool:
    """Whether lines can be redrawn in place."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def has_colour(stream: TextIO) -> bool:
    """Colours only on a terminal, and never with NO_COLOR set to anything."""
    return is_live(stream) and not os.environ.get("NO_COLOR")


def painted(text: str, colour: str | None) -> str:
    return f"\x1b[{COLOURS[colour]}m{text}\x1b[0m" if colour else text


def width_of(stream: TextIO) -> int | None:
    """Columns of the terminal; None where nothing limits a line."""
    return shutil.get_terminal_size().columns if stream.isatty() else None


def clean(text: str) -> str:
    """Replaces control characters, which names and messages from elsewhere may hold.

    Line breaks and tabs become a space each, so that a message stays in its line.
    """
    if text.isprintable():
        return text
    spaced = "".join(" " if character in "\n\t" else character for character in text)
    return "".join("�" if unicodedata.category(c) in ("Cc", "Cf", "Cs") else c for c in spaced)


def cells_of(text: str) -> int:
    """How many cells of a terminal a text takes: two for a wide character, none for an accent."""
    if text.isascii():
        return len(text)
    return sum(map(_cells_of_character, text))


def cut(text: str, cells: int) -> str:
    """The text, or as much of it as fits `cells` with an ellipsis."""
    if cells_of(text) <= cells:
        return text
    kept = ""
    room = cells - 1
    for character in text:
        room -= _cells_of_character(character)
        if room < 0:
            break
        kept += character
    return f"{kept}…"


def counted(number: int, noun: str) -> str:
    """(1, 'step') -> '1 step', (2, 'step') -> '2 steps'."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def bar(fraction: float, cells: int = BAR_CELLS) -> str:
    """`[#####---------------]` for 0.25."""
    full = round(min(1.0, max(0.0, fraction)) * cells)
    return f"[{'#' * full}{'-' * (cells - full)}]"


class ByteBar:
    """A progress bar on stderr, for transfers that take over a second on a terminal."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._started_seconds = time.monotonic()
        self._drawn_seconds = 0.0

    def update(self, done: int, total: int) -> None:
        now = time.monotonic()
        if not is_live(sys.stderr) or now - self._started_seconds < BAR_AFTER_SECONDS:
            return
        if now - self._drawn_seconds < 0.1 and done < total:
            return
        self._drawn_seconds = now
        amounts = f"{bytes_text(done)} of {bytes_text(total)}"
        share = bar(done / total if total else 1.0)
        print(f"\r\x1b[K{self._label} {share} {amounts}", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._drawn_seconds:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def bytes_text(size: int) -> str:
    """1536 -> '1.5 KiB'."""
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def _cells_of_character(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1
