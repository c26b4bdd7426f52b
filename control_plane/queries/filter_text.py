"""The text of a filter, for example `state:running metric:loss<0.3 lr>0.01 -label:old`.

A filter is a list of terms, separated by white space. An object matches if it matches every term.
A term is a word, which is a part of the name, or a key with an operator and values. `-` in front of
a term negates the term. Names and values with other characters stand in double quotes.
"""

import json
import math
import re
from dataclasses import dataclass
from typing import Final, Literal

Operator = Literal["=", "!=", "<", "<=", ">", ">="]

CHARACTERS_MAX: Final = 1_000
"""The most characters of a filter."""
TERMS_MAX: Final = 20
"""The most terms of a filter."""

_SPACE = re.compile(r"\s*")
_OPERATOR = re.compile(r"!=|<=|>=|[:=<>]")
_KEY_PART = re.compile(r'[^\s:=<>!",]+|"(?:[^"\\]|\\.)*"')
_VALUE = re.compile(r'"(?:[^"\\]|\\.)*"|[^\s",]+')
_QUOTE_ADVICE = 'a name or a value in double quotes that end, as in label:"two words"'


class FilterInvalid(ValueError):
    """A text that is not a filter.

    Args:
        place: the character of the text at which the wrong part begins, from 1.
        value: the wrong part of the text. "" for a part that is missing.
        expected: a description of a valid part.
    """

    def __init__(self, place: int, value: str, expected: str) -> None:
        found = f"{value[:60]!r}" if value else "the end of the term"
        super().__init__(f"character {place}: {found} is not valid; expected {expected}")
        self.place = place
        self.value = value
        self.expected = expected


@dataclass(frozen=True, slots=True)
class Value:
    """A value of a term."""

    place: int
    """The character of the filter at which the value begins, from 1."""
    text: str
    """The value without quotes."""
    is_quoted: bool = False

    def to_number(self, example: str) -> float:
        """Return the value as a finite number.

        Raises:
            FilterInvalid: the value is not a finite number. The message contains `example`.
        """
        try:
            number = float(self.text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number) or "_" in self.text:
            raise FilterInvalid(self.place, self.text, f"a number, as in {example}")
        return number


@dataclass(frozen=True, slots=True)
class Term:
    """A term of a filter. The object matches if one of the values matches."""

    place: int
    """The character of the filter at which the term begins, from 1."""
    text: str
    """The term as written."""
    is_negated: bool
    """Whether the object must not match. `!=` negates the term, too."""
    key: str
    """The text before the first operator, "" for a word alone."""
    name: str
    """The name after the key: `loss` in `metric:loss<0.3`. "" without a name."""
    operator: Operator
    """The comparison. `:` and `!=` are `=`."""
    values: tuple[Value, ...]
    has_colon: bool = False
    """Whether `:` is the operator."""

    @property
    def key_place(self) -> int:
        """The character of the filter at which the key begins, from 1."""
        return self.place + self.text.startswith("-")

    @property
    def plain_name(self) -> str:
        """The name without quotes around the whole name."""
        return self.name if not self.name.startswith('"') else _parse_quoted(self.name) or self.name


def parse_filter(text: str, named_keys: frozenset[str] = frozenset()) -> tuple[Term, ...]:
    """Parse a filter. A text of white space has no terms.

    Args:
        text: the filter.
        named_keys: the keys that a name follows, such as `metric` in `metric:loss<0.3`.

    Raises:
        FilterInvalid: the text is not a filter, or has more than CHARACTERS_MAX characters or
            TERMS_MAX terms.
    """
    if len(text) > CHARACTERS_MAX:
        rest = text[CHARACTERS_MAX:]
        raise FilterInvalid(CHARACTERS_MAX + 1, rest, f"at most {CHARACTERS_MAX} characters")
    terms: list[Term] = []
    place = _skip_space(text, 0)
    while place < len(text):
        if len(terms) == TERMS_MAX:
            raise FilterInvalid(place + 1, text[place:], f"at most {TERMS_MAX} terms")
        term, place = _read_term(text, place, named_keys)
        terms.append(term)
        place = _skip_space(text, place)
    return tuple(terms)


def _read_term(text: str, start: int, named_keys: frozenset[str]) -> tuple[Term, int]:
    """Read the term at a place. Return the term and the place after the term.

    Raises:
        FilterInvalid: the text at the place is not a term.
    """
    is_negated = text[start] == "-" and len(text) > start + 1 and not text[start + 1].isspace()
    place = start + is_negated
    key, after_key = _read_key(text, place)
    found = _OPERATOR.match(text, after_key)
    name = ""
    if found is None:
        if text[after_key : after_key + 1] in ("!", ","):
            value = text[after_key]
            raise FilterInvalid(after_key + 1, value, "white space, an operator or double quotes")
        word = Value(place + 1, _unquote(text, place, key), key.startswith('"'))
        term = Term(start + 1, text[start:after_key], is_negated, "", "", "=", (word,))
        return term, after_key
    if not key:
        expected = "the name of a field before the operator, as in state:running"
        raise FilterInvalid(place + 1, text[place : found.end()], expected)
    if key in named_keys and found[0] == ":":
        name_place = found.end()
        name, after_name = _read_key(text, name_place)
        found = _OPERATOR.match(text, after_name)
        if not name or found is None or found[0] == ":":
            value = text[name_place:after_name] or _rest_of_term(text, name_place)
            expected = f"a name and a comparison, as in {key}:loss<0.3"
            raise FilterInvalid(name_place + 1, value, expected)
    values, end = _read_values(text, found.end(), found[0])
    return (
        Term(
            start + 1,
            text[start:end],
            is_negated != (found[0] == "!="),
            key,
            name,
            _operator(found[0]),
            values,
            has_colon=found[0] == ":",
        ),
        end,
    )


def _operator(text: str) -> Operator:
    """Return the comparison of an operator as written."""
    match text:
        case "<" | "<=" | ">" | ">=":
            return text
    return "="


def _read_key(text: str, place: int) -> tuple[str, int]:
    """Read the key at a place, with the quotes of quoted parts. Return the key and the place after
    the key.

    The key is "" if no key is at the place.

    Raises:
        FilterInvalid: a quote does not end.
    """
    end = place
    while found := _KEY_PART.match(text, end):
        end = found.end()
    if text[end : end + 1] == '"':
        raise FilterInvalid(end + 1, _rest_of_term(text, end), _QUOTE_ADVICE)
    return text[place:end], end


def _read_values(text: str, place: int, operator: str) -> tuple[tuple[Value, ...], int]:
    """Read values, separated by commas. Return the values and the place after the last value.

    Raises:
        FilterInvalid: no value is at the place or after a comma, or a comparison by size has
            several values.
    """
    values: list[Value] = []
    while True:
        found = _VALUE.match(text, place)
        if found is None:
            if text[place : place + 1] == '"':
                raise FilterInvalid(place + 1, _rest_of_term(text, place), _QUOTE_ADVICE)
            expected = f"a value after {text[place - 1]!r}"
            raise FilterInvalid(place + 1, _rest_of_term(text, place), expected)
        if values and operator in ("<", "<=", ">", ">="):
            raise FilterInvalid(place + 1, found[0], f"a single value after {operator!r}")
        is_quoted = found[0].startswith('"')
        values.append(Value(place + 1, _unquote(text, place, found[0]), is_quoted))
        place = found.end()
        if text[place : place + 1] != ",":
            break
        place += 1
    if rest := _rest_of_term(text, place):
        raise FilterInvalid(place + 1, rest, "white space after a value")
    return tuple(values), place


def _unquote(text: str, place: int, part: str) -> str:
    """Return a part of the filter without quotes. A part without quotes stays unchanged.

    Raises:
        FilterInvalid: the part in quotes is not a JSON string.
    """
    if not part.startswith('"'):
        return part
    found = _parse_quoted(part)
    if found is None:
        raise FilterInvalid(place + 1, part, _QUOTE_ADVICE)
    return found


def _parse_quoted(part: str) -> str | None:
    """Return the text of a JSON string. Return None for another text."""
    try:
        return str(json.loads(part, strict=False))
    except ValueError:
        return None


def _rest_of_term(text: str, place: int) -> str:
    """Return the text from a place to the next white space, "" at white space and at the end."""
    return "" if text[place : place + 1].isspace() else text[place:].partition(" ")[0]


def _skip_space(text: str, place: int) -> int:
    """Return the place after white space."""
    found = _SPACE.match(text, place)
    assert found is not None
    return found.end()
