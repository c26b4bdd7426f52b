"""The parser of regular expressions in the syntax of RE2, which Go and Determined use.

https://github.com/google/re2/wiki/Syntax describes the syntax. Backreferences and lookarounds do
not exist, because no automaton matches them in linear time. Names of scripts such as `\\p{Greek}`
are refused. Captures have no effect, because a pattern only decides whether a line matches.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from detcloud.shared.line_patterns.character_sets import (
    ANY,
    ASCII_CLASSES,
    DIGITS,
    LAST,
    SPACES,
    WORDS,
    Ranges,
    category_ranges,
    fold_ranges,
    merge_ranges,
    negate_ranges,
)

PATTERN_CHARACTERS_MAX: Final = 1_000
"""The longest pattern."""
REPEATS_MAX: Final = 1_000
"""The largest number in `{N}`, as in RE2."""
DEPTH_MAX: Final = 50
"""The most groups within groups."""


class PatternInvalid(ValueError):
    """The pattern is no regular expression of RE2. The message says why."""


class Position(Enum):
    """A condition on a position between two characters."""

    BEGIN = "begin"
    END = "end"
    WORD_EDGE = "word edge"
    NO_WORD_EDGE = "no word edge"


@dataclass(frozen=True, slots=True)
class Characters:
    """A character of a set."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Sequence:
    """Parts in a row. Without parts, the empty text."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """Alternatives."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A part that is repeated."""

    part: Node
    least: int
    """The smallest number of repetitions."""
    most: int | None
    """The largest number of repetitions. None: no limit."""


Node = Characters | Position | Sequence | Choice | Repeat

_CLASSES: Final = {"d": DIGITS, "s": SPACES, "w": WORDS}
_CONTROLS: Final = {"a": 7, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11}
_POSITIONS: Final = {
    "A": Position.BEGIN,
    "z": Position.END,
    "b": Position.WORD_EDGE,
    "B": Position.NO_WORD_EDGE,
}
_FLAGS: Final = "imsU"
_OCTAL: Final = "01234567"
_HEX: Final = "0123456789abcdefABCDEF"
_NAME_CHARACTERS: Final = frozenset(
    "_0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
)


def parse_pattern(pattern: str) -> Node:
    """Parse a regular expression. Raise PatternInvalid if RE2 or this parser does not accept it."""
    if len(pattern) > PATTERN_CHARACTERS_MAX:
        raise PatternInvalid(f"has more than {PATTERN_CHARACTERS_MAX:,} characters")
    parser = _Parser(pattern)
    node = parser.parse_choice(0)
    if parser.rest:
        raise PatternInvalid("has a `)` without its `(`")
    return node


class _Parser:
    """A recursive descent over the text of a pattern.

    `ignores_case` is the state of the flag `i` at the present place.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self.ignores_case = False

    @property
    def rest(self) -> str:
        """The text that is not parsed yet."""
        return self._text[self._at :]

    def parse_choice(self, depth: int) -> Node:
        """Parse alternatives up to the end or to a `)`, which is left."""
        if depth > DEPTH_MAX:
            raise PatternInvalid(f"has more than {DEPTH_MAX} groups within groups")
        before = self.ignores_case
        parts = [self._parse_sequence(depth)]
        while self._skip("|"):
            parts.append(self._parse_sequence(depth))
        self.ignores_case = before
        return parts[0] if len(parts) == 1 else Choice(tuple(parts))

    def _parse_sequence(self, depth: int) -> Node:
        parts: list[Node] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            if self._skip("\\Q"):
                parts += self._parse_quoted()
                continue
            part = self._parse_atom(depth)
            if part is not None:
                parts.append(self._parse_repeats(part))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _parse_quoted(self) -> list[Node]:
        """Parse characters up to `\\E` or the end. An operator repeats the last character."""
        quoted, _, _ = self.rest.partition("\\E")
        self._at += len(quoted)
        self._skip("\\E")
        parts: list[Node] = [self._literal(ord(character)) for character in quoted]
        return [*parts[:-1], self._parse_repeats(parts[-1])] if parts else []

    def _parse_atom(self, depth: int) -> Node | None:
        """Parse a character, class, position or group. Return None for a change of flags."""
        character = self._read_character()
        match character:
            case "(":
                return self._parse_group(depth)
            case "[":
                return self._parse_class()
            case ".":
                return Characters(ANY)
            case "^":
                return Position.BEGIN
            case "$":
                return Position.END
            case "*" | "+" | "?":
                raise PatternInvalid(f"has a `{character}` without an expression to repeat")
            case "\\":
                return self._parse_escape()
            case _:
                return self._literal(ord(character))

    def _parse_repeats(self, part: Node) -> Node:
        """Parse the operator of repetition after a part, if any. RE2 allows a single operator."""
        counts = self._parse_repeat()
        if counts is None:
            return part
        self._skip("?")
        before = self._at
        if self._parse_repeat() is not None:
            operator = self._text[before : self._at]
            raise PatternInvalid(f"has `{operator}` after another repetition")
        return Repeat(part, *counts)

    def _parse_repeat(self) -> tuple[int, int | None] | None:
        for operator, counts in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._skip(operator):
                return counts
        if not self.rest.startswith("{"):
            return None
        inner, closing, _ = self.rest[1:].partition("}")
        first, comma, last = inner.partition(",")
        if not closing or not _is_number(first) or not (last == "" or _is_number(last)):
            # Without numbers, the brace is a character.
            return None
        self._at += len(inner) + 2
        least = int(first)
        most = (int(last) if last else None) if comma else least
        if max(least, most or 0) > REPEATS_MAX or (most is not None and most < least):
            raise PatternInvalid(f"has the repetition {{{inner}}}, which RE2 does not accept")
        return least, most

    def _parse_group(self, depth: int) -> Node | None:
        if self._skip("?"):
            for name_start in ("P<", "<"):
                if not self.rest.startswith(("<=", "<!")) and self._skip(name_start):
                    return self._parse_named_group(depth)
            return self._parse_flags(depth)
        return self._parse_inner(depth)

    def _parse_named_group(self, depth: int) -> Node:
        name, closing, _ = self.rest.partition(">")
        if not closing or not name or not _NAME_CHARACTERS.issuperset(name):
            raise PatternInvalid("has a group with an invalid name")
        self._at += len(name) + 1
        return self._parse_inner(depth)

    def _parse_flags(self, depth: int) -> Node | None:
        """Parse flags up to `)` or `:`. Flags before `)` change the rest of the group."""
        before, value = self.ignores_case, True
        while True:
            flag = self._read_character("a group without its `)`")
            if flag == "-" and value:
                value = False
            elif flag == "i":
                self.ignores_case = value
            elif flag in (":", ")"):
                break
            elif flag not in _FLAGS:
                raise PatternInvalid(f"has `(?{flag}`, which RE2 does not have")
        if flag == ")":
            return None
        node = self._parse_inner(depth)
        self.ignores_case = before
        return node

    def _parse_inner(self, depth: int) -> Node:
        node = self.parse_choice(depth + 1)
        if not self._skip(")"):
            raise PatternInvalid("has a `(` without its `)`")
        return node

    def _parse_class(self) -> Node:
        negated = self._skip("^")
        ranges: list[tuple[int, int]] = []
        is_first = True
        while is_first or not self.rest.startswith("]"):
            is_first = False
            if not self.rest:
                raise PatternInvalid("has a `[` without its `]`")
            if self.rest.startswith("[:") and ":]" in self.rest:
                ranges += self._parse_ascii_class()
                continue
            first = self._parse_class_member()
            if not isinstance(first, int):
                ranges += first
                continue
            last: int | Ranges = first
            if self.rest.startswith("-") and not self.rest.startswith("-]"):
                self._at += 1
                last = self._parse_class_member()
            if not isinstance(last, int) or last < first:
                raise PatternInvalid("has a range of characters that ends before it begins")
            ranges.append((first, last))
        self._skip("]")
        merged = self._fold_case(merge_ranges(ranges))
        return Characters(negate_ranges(merged) if negated else merged)

    def _parse_ascii_class(self) -> Ranges:
        name = self.rest[2:].partition(":]")[0]
        self._at += len(name) + 4
        ranges = ASCII_CLASSES.get(name.removeprefix("^"))
        if ranges is None:
            raise PatternInvalid(f"has the unknown class [:{name}:]")
        return negate_ranges(ranges) if name.startswith("^") else ranges

    def _parse_class_member(self) -> int | Ranges:
        """Parse a member of a class: return the code point, or the ranges of a named class."""
        character = self._read_character("a `[` without its `]`")
        if character != "\\":
            return ord(character)
        escaped = self._read_character("a `\\` at its end")
        return self._named_class(escaped) or self._escaped_code(escaped)

    def _parse_escape(self) -> Node:
        escaped = self._read_character("a `\\` at its end")
        if (position := _POSITIONS.get(escaped)) is not None:
            return position
        if ranges := self._named_class(escaped):
            return Characters(ranges)
        return self._literal(self._escaped_code(escaped))

    def _named_class(self, letter: str) -> Ranges:
        """Return the ranges of a class, for example `\\d`. Return () for other letters."""
        if letter.lower() in _CLASSES:
            ranges = _CLASSES[letter.lower()]
            return negate_ranges(ranges) if letter.isupper() else ranges
        if letter not in "pP":
            return ()
        name = self._read_character("an incomplete `\\p`")
        if name == "{":
            name, _, _ = self.rest.partition("}")
            self._at += len(name) + 1
        is_negated = (letter == "P") != name.startswith("^")
        ranges = category_ranges(name.removeprefix("^")) if 0 < len(name) <= 3 else ()
        if not ranges:
            raise PatternInvalid(f"has \\p{{{name}}}: only general categories are supported")
        return self._fold_case(negate_ranges(ranges) if is_negated else ranges)

    def _escaped_code(self, letter: str) -> int:
        """Return the code point of an escape. `letter` is the character after the backslash."""
        if letter in _CONTROLS:
            return _CONTROLS[letter]
        if letter == "x":
            return self._hexadecimal_code()
        if letter in _OCTAL:
            digits = letter
            while len(digits) < 3 and self.rest[:1] and self.rest[0] in _OCTAL:
                digits += self._read_character()
            if letter != "0" and len(digits) == 1:
                raise PatternInvalid(f"has the backreference \\{letter}, which RE2 does not have")
            return int(digits, 8)
        if letter.isalnum() and letter.isascii():
            raise PatternInvalid(f"has the escape \\{letter}, which RE2 does not have")
        return ord(letter)

    def _hexadecimal_code(self) -> int:
        if self._skip("{"):
            digits, closing, _ = self.rest.partition("}")
            self._at += len(digits) + 1
        else:
            digits, closing = self.rest[:2], "}" if len(self.rest) >= 2 else ""
            self._at += 2
        if not closing or not digits or len(digits) > 8 or not all(one in _HEX for one in digits):
            raise PatternInvalid("has an invalid escape \\x")
        code = int(digits, 16)
        if code > LAST:
            raise PatternInvalid("has an escape \\x beyond the last character of Unicode")
        return code

    def _literal(self, code: int) -> Characters:
        return Characters(self._fold_case(((code, code),)))

    def _fold_case(self, ranges: Ranges) -> Ranges:
        return fold_ranges(ranges) if self.ignores_case else ranges

    def _skip(self, text: str) -> bool:
        """Skip a text that follows. Return whether the text followed."""
        follows = self._text.startswith(text, self._at)
        self._at += len(text) if follows else 0
        return follows

    def _read_character(self, missing: str = "an unexpected end") -> str:
        """Return the next character. Raise PatternInvalid with the text `missing` at the end."""
        if self._at >= len(self._text):
            raise PatternInvalid(f"has {missing}")
        self._at += 1
        return self._text[self._at - 1]


def _is_number(text: str) -> bool:
    return text.isdigit() and text.isascii() and len(text) <= 6
