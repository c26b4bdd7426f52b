"""Splitting of a log's text into lines, as scripts for Determined read them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

# A carriage return ends a line, so that progress bars are visible while they move.
_LINE_END = re.compile("\r\n|\n|\r")
# A longer line is yielded in pieces, to bound the memory.
LINE_CHARACTERS_MAX = 1 << 20


def split_lines(pieces: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a text that arrives in pieces, including the line ends.

    A carriage return ends a line, too, as in Determined. A line of more than LINE_CHARACTERS_MAX is
    yielded in pieces.
    """
    rest = ""
    for piece in pieces:
        text = rest + piece
        # A carriage return at the end may be the first half of a line break.
        place = 0
        for end in _LINE_END.finditer(text):
            if end[0] == "\r" and end.end() == len(text):
                break
            yield text[place : end.end()]
            place = end.end()
        rest = text[place:]
        if len(rest) > LINE_CHARACTERS_MAX:
            yield rest
            rest = ""
    if rest:
        yield rest
