"""Terminals: width, colours, progress bars, and removal of control sequences."""

from __future__ import annotations

import os
import re
import shutil
import sys
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
    "running": "cyan",
    "starting": "cyan",
    "finished": "green",
    "failed": "red",
    "deletion failed": "red",
    "canceled": "yellow",
    "paused": "yellow",
    "pausing": "yellow",
}
BAR_CELLS = 20
# Group 1 matches a colour sequence, which a program may print. The rest matches characters that
# control a terminal or the direction of text, except for tabs, line breaks and carriage returns.
STEERING = re.compile(
    "(\x1b\\[[0-9;:]*m)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)


def is_live(stream: TextIO) -> bool:
    """Return whether the stream is a terminal on which lines can be redrawn: any terminal, unless
    TERM is `dumb`.
    """
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def print_remark(subject: str, text: str) -> None:
    """Print `SUBJECT: TEXT` to stderr, also while the terminal is in raw mode.

    Control sequences are removed from the text.
    """
    end = "\r\n" if sys.stderr.isatty() else "\n"
    print(f"{subject}: {sanitize(text)}", end=end, file=sys.stderr, flush=True)


def has_colour(stream: TextIO) -> bool:
    """Return whether to print colours: on a live terminal, unless NO_COLOR is set and not empty."""
    return is_live(stream) and not os.environ.get("NO_COLOR")


def colourize(text: str, colour: str | None) -> str:
    """Return a text in the escape codes of a colour. Return the text unchanged if the colour is
    None or "".

    Args:
        colour: a key of COLOURS; another text raises KeyError.
    """
    return f"\x1b[{COLOURS[colour]}m{text}\x1b[0m" if colour else text


def terminal_width(stream: TextIO) -> int | None:
    """Return the columns of the terminal. None if the stream is not a terminal.

    COLUMNS in the environment has precedence. The width is that of standard output's terminal, or
    80 if standard output is not a terminal.
    """
    return shutil.get_terminal_size().columns if stream.isatty() else None


def sanitize(text: str) -> str:
    """Return a text without line breaks and control characters.

    Line breaks and tabs become blanks. Other control and formatting characters, carriage returns
    included, become U+FFFD. The rest of an escape sequence stays as text.
    """
    if text.isprintable():
        return text
    spaced = "".join(" " if character in "\n\t" else character for character in text)
    return "".join("�" if unicodedata.category(c) in ("Cc", "Cf", "Cs") else c for c in spaced)


def sanitize_output(text: str, stream: TextIO) -> str:
    """Return a program's output in which characters that control the terminal are replaced by
    U+FFFD. If `stream` is not a terminal, return the text unchanged.

    Colours, tabs, line breaks and carriage returns are kept. The rest of an escape sequence stays
    as text. Marks that change the direction of text are replaced too.
    """
    return sanitize_for_terminal(text) if stream.isatty() else text


def sanitize_for_terminal(text: str) -> str:
    """Return a text in which characters that control a terminal or the direction of text are
    replaced by U+FFFD.

    Colours, tabs, line breaks and carriage returns are kept. The rest of an escape sequence stays
    as text: `\\x1b[2J` becomes U+FFFD and `[2J`.
    """
    return STEERING.sub(lambda match: match[1] or "�", text)


def display_width(text: str) -> int:
    """Return the number of terminal cells of a text: 2 for a wide character, 0 for an accent."""
    if text.isascii():
        return len(text)
    return sum(map(_character_width, text))


def truncate(text: str, cells: int) -> str:
    """Return a text of at most `cells` cells. A longer text is cut and ends with an ellipsis.

    Escape codes of colours count as cells, so that colours are added afterwards.

    Args:
        cells: at least 1.
    """
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
    """Return a progress bar, for example `[#####---------------]` for 0.25. Fractions below 0 count
    as 0, above 1 as 1.

    Args:
        cells: the number of characters between the brackets.
    """
    full = round(min(1.0, max(0.0, fraction)) * cells)
    return f"[{'#' * full}{'-' * (cells - full)}]"


def _character_width(character: str) -> int:
    """Return the number of terminal cells of a character: 2 for a wide character, 0 for a combining
    character, otherwise 1.
    """
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1
