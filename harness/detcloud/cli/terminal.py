"""What a terminal can show: colours, its size, bars, and nothing that would steer it."""

from __future__ import annotations

import os
import shutil
import unicodedata
from typing import TextIO

COLOURS = {"red": 31, "green": 32, "yellow": 33, "blue": 34, "magenta": 35, "cyan": 36}
STATE_COLOURS = {
    "ACTIVE": "cyan",
    "RUNNING": "cyan",
    "COMPLETED": "green",
    "ERROR": "red",
    "CANCELED": "yellow",
    "PAUSED": "yellow",
}
BAR_CELLS = 20


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
