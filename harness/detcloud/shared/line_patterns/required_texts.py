"""Parts of a pattern that every matching line contains: fixed texts, or a window of characters.

The search for a part is dozens of times faster than an automaton in Python. Therefore the automaton
only reads lines that contain the part.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Final

from detcloud.shared.line_patterns.character_sets import Ranges
from detcloud.shared.line_patterns.syntax import (
    Characters,
    Choice,
    Node,
    Position,
    Repeat,
    Sequence,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_LINE_ENDS = frozenset({10, 13})
TEXTS_MAX: Final = 16
"""The most texts. The search for more texts is no longer fast."""
WINDOW_MAX: Final = 16
"""The most characters of a window."""

Texts = frozenset[str]

_NONE: Final[Texts] = frozenset()
_EMPTY: Final[Texts] = frozenset({""})


def required_texts(node: Node) -> Texts:
    """Return ASCII texts in lower case. Every match contains at least a single text.

    Return the empty set if no texts are known.
    """
    match node:
        case Characters() | Position():
            return _without_empty(_all_texts(node))
        case Sequence(parts):
            return _required_of_sequence(parts)
        case Choice(parts):
            texts = [required_texts(part) for part in parts]
            union = _NONE.union(*texts)
            return union if all(texts) and len(union) <= TEXTS_MAX else _NONE
        case Repeat(part, least, _):
            return required_texts(part) if least > 0 else _NONE


def required_window(node: Node) -> str:
    """Return a regular expression of `re` over bytes that every match contains. "" if unknown.

    The expression is a row of 2 to WINDOW_MAX sets of ASCII characters, so that `re` needs time
    linear in the text.
    """
    parts = node.parts if isinstance(node, Sequence) else (node,)
    windows: list[list[str]] = [[]]
    for part in parts:
        sets, is_complete = _leading_sets(part)
        windows[-1] += sets
        if not is_complete:
            # Unknown characters separate the next window from this window.
            windows.append([])
    longest = max(windows, key=len)
    return "".join(longest[:WINDOW_MAX]) if len(longest) > 1 else ""


def _leading_sets(node: Node) -> tuple[list[str], bool]:
    """Return the sets at the beginning of each match, and whether no characters follow the sets.

    Return an empty list for nodes that may match characters of other sets first.
    """
    match node:
        case Position():
            return [], True
        case Characters(ranges):
            expression = _set_expression(ranges)
            return ([expression], True) if expression else ([], False)
        case Repeat(Characters(ranges), least, most):
            expression = _set_expression(ranges)
            return [expression] * min(least, WINDOW_MAX) if expression else [], least == most
        case _:
            return [], False


def _set_expression(ranges: Ranges) -> str:
    """Return a set of ASCII characters as an expression of `re`, without ends of lines.

    Return "" for other sets, and for a set of nothing but ends of lines.
    """
    if not ranges or any(last > 127 for _, last in ranges):
        return ""
    kept = [f"\\x{first:02x}-\\x{last:02x}" for first, last in _without_line_ends(ranges)]
    return f"[{''.join(kept)}]" if kept else ""


def _required_of_sequence(parts: tuple[Node, ...]) -> Texts:
    """Return the best texts of a run of parts with few texts, or of a single part."""
    candidates: list[Texts] = []
    run = _EMPTY
    for part in parts:
        texts = _all_texts(part)
        if texts and len(run) * len(texts) <= TEXTS_MAX:
            run = frozenset(before + after for before, after in product(run, texts))
            continue
        candidates.append(run)
        run = texts or _EMPTY
        if not texts:
            candidates.append(required_texts(part))
    candidates.append(run)
    return max(map(_without_empty, candidates), key=_usefulness)


def _all_texts(node: Node) -> Texts:
    """Return all texts that a node matches, in lower case. The empty set if not few ASCII texts."""
    match node:
        case Position():
            return _EMPTY
        case Characters(ranges):
            return _characters(ranges)
        case Sequence(parts):
            texts = _EMPTY
            for part in parts:
                own = _all_texts(part)
                if len(texts) * len(own) > TEXTS_MAX:
                    return _NONE
                texts = frozenset(before + after for before, after in product(texts, own))
            return texts
        case Choice(parts):
            each = [_all_texts(part) for part in parts]
            union = _NONE.union(*each)
            return union if all(each) and len(union) <= TEXTS_MAX else _NONE
        case Repeat(part, 0, 1):
            texts = _all_texts(part)
            return texts | _EMPTY if texts else _NONE
        case _:
            return _NONE


def _characters(ranges: Ranges) -> Texts:
    """Return the characters of a set in lower case, without ends of lines, which no line contains.

    Return the empty set if the set has many characters, or characters that are not ASCII.
    """
    size = sum(last - first + 1 for first, last in ranges)
    if size > TEXTS_MAX or any(last > 127 for _, last in ranges):
        return _NONE
    codes = (code for first, last in ranges for code in range(first, last + 1))
    return frozenset(chr(code).lower() for code in codes if code not in _LINE_ENDS)


def _without_line_ends(ranges: Ranges) -> Iterator[tuple[int, int]]:
    """Yield the ranges of a set without the ends of lines."""
    for first, last in ranges:
        start = first
        for end in sorted(_LINE_ENDS):
            if start <= end <= last:
                if start < end:
                    yield start, end - 1
                start = end + 1
        if start <= last:
            yield start, last


def _without_empty(texts: Texts) -> Texts:
    """Return the texts. Return the empty set if a text is empty, because every line contains it."""
    return _NONE if "" in texts else texts


def _usefulness(texts: Texts) -> tuple[int, int]:
    """Return a sort key: texts without a short text are better, then fewer texts."""
    return min(map(len, texts), default=0), -len(texts)
