"""Terminals: width, colours, bars, and texts without what would steer the terminal."""

from __future__ import annotations

import os
import re
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
# A colour or its end, which a program may print; and what else would steer a terminal or the
# direction of its text, but tabs, line breaks and carriage returns.
STEERING = re.compile(
    "(\x1b\\[[0-9;:]*m)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)


def is_live(stream: TextIO) -> bool:
    """Whether lines can be redrawn in place."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def has_colour(stream: TextIO) -> bool:
    """Whether colours are shown: only on a terminal, and never with NO_COLOR set to anything."""
    return is_live(stream) and not os.environ.get("NO_COLOR")


def colourize(text: str, colour: str | None) -> str:
    """Wrap a text in the escape codes of a colour; None leaves it as it is."""
    return f"\x1b[{COLOURS[colour]}m{text}\x1b[0m" if colour else text


def terminal_width(stream: TextIO) -> int | None:
    """Columns of the terminal; None where nothing limits a line."""
    return shutil.get_terminal_size().columns if stream.isatty() else None


def sanitize(text: str) -> str:
    """Replace control characters, which names and messages from a cluster may hold.

    Line breaks and tabs become a space each, so that a message stays in its line.
    """
    if text.isprintable():
        return text
    spaced = "".join(" " if character in "\n\t" else character for character in text)
    return "".join("�" if unicodedata.category(c) in ("Cc", "Cf", "Cs") else c for c in spaced)


def sanitize_output(text: str, stream: TextIO) -> str:
    """Replace what in a program's output would steer the terminal that `stream` is: a title, the
    clipboard, the cursor. Colours stay. A file or a pipe gets the text as it is.
    """
    return sanitize_for_terminal(text) if stream.isatty() else text


def sanitize_for_terminal(text: str) -> str:
    """Replace control sequences, except for colours, by U+FFFD."""
    return STEERING.sub(lambda found: found[1] or "�", text)


def display_width(text: str) -> int:
    """Count the cells that a text takes: two for a wide character, none for an accent."""
    if text.isascii():
        return len(text)
    return sum(map(_character_width, text))


def truncate(text: str, cells: int) -> str:
    """Cut a text to as much of it as fits `cells` with an ellipsis."""
    if display_width(text) <= cells:
        return text
    start = ""
    room = cells - 1
    for character in text:
        room -= _character_width(character)
        if room < 0:
            break
        start += character
    return f"{start}…"


def progress_bar(fraction: float, cells: int = BAR_CELLS) -> str:
    """`[#####---------------]` for 0.25."""
    full = round(min(1.0, max(0.0, fraction)) * cells)
    return f"[{'#' * full}{'-' * (cells - full)}]"


def _character_width(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1
