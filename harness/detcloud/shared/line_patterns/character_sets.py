"""Sets of characters, as sorted ranges of code points."""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

Ranges = tuple[tuple[int, int], ...]
"""Disjoint ranges of code points in ascending order, each with the first and the last one."""

LAST: Final = 0x10FFFF
ANY: Final[Ranges] = ((0, 9), (11, LAST))
"""Every character except the newline."""
DIGITS: Final[Ranges] = ((48, 57),)
SPACES: Final[Ranges] = ((9, 10), (12, 13), (32, 32))
WORDS: Final[Ranges] = ((48, 57), (65, 90), (95, 95), (97, 122))
ASCII_CLASSES: Final = {
    "alnum": ((48, 57), (65, 90), (97, 122)),
    "alpha": ((65, 90), (97, 122)),
    "ascii": ((0, 127),),
    "blank": ((9, 9), (32, 32)),
    "cntrl": ((0, 31), (127, 127)),
    "digit": DIGITS,
    "graph": ((33, 126),),
    "lower": ((97, 122),),
    "print": ((32, 126),),
    "punct": ((33, 47), (58, 64), (91, 96), (123, 126)),
    "space": ((9, 13), (32, 32)),
    "upper": ((65, 90),),
    "word": WORDS,
    "xdigit": ((48, 57), (65, 70), (97, 102)),
}
"""The sets of `[[:NAME:]]`."""
_CASE_DISTANCE = 32


def merge_ranges(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return the union of ranges in ascending order, without overlaps."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return tuple(merged)


def negate_ranges(ranges: Ranges) -> Ranges:
    """Return the ranges of all code points outside of the ranges."""
    gaps = []
    start = 0
    for first, last in ranges:
        if first > start:
            gaps.append((start, first - 1))
        start = last + 1
    if start <= LAST:
        gaps.append((start, LAST))
    return tuple(gaps)


def fold_ranges(ranges: Ranges) -> Ranges:
    """Return the ranges with the upper and lower case of each letter.

    ASCII letters in a range get both cases. Other letters get both cases only if they are alone in
    their range.
    """
    folded = list(ranges)
    for first, last in ranges:
        for lowest, highest, distance in ((65, 90, _CASE_DISTANCE), (97, 122, -_CASE_DISTANCE)):
            inner = max(first, lowest), min(last, highest)
            if inner[0] <= inner[1]:
                folded.append((inner[0] + distance, inner[1] + distance))
        if first == last > 127:
            forms = (chr(first).lower(), chr(first).upper())
            folded += ((ord(form), ord(form)) for form in forms if len(form) == 1)
    return merge_ranges(folded)


def has_character(ranges: Ranges, code: int) -> bool:
    """Return whether a range contains the code point."""
    return any(first <= code <= last for first, last in ranges)


@lru_cache(maxsize=16)
def category_ranges(category: str) -> Ranges:
    """Return the characters of a general category of Unicode, for example `L` or `Nd`.

    Return () for an unknown category.
    """
    ranges: list[tuple[int, int]] = []
    for code in range(LAST + 1):
        if unicodedata.category(chr(code)).startswith(category):
            if ranges and ranges[-1][1] == code - 1:
                ranges[-1] = (ranges[-1][0], code)
            else:
                ranges.append((code, code))
    return tuple(ranges)
