"""A writer of YAML in block style for JSON values, for readers of YAML 1.1 and 1.2.

Texts that could be read as another type are quoted, so that a reader gets the same value.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping

# YAML limits a simple key to 1024 characters, and escapes make a text up to ten times as long.
SIMPLE_KEY_CHARACTERS_MAX = 100
_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./+-]*(?: [A-Za-z0-9_./+=(][A-Za-z0-9_./+=()-]*)*")
_WORDS = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null"))


def render_yaml(value: object) -> str:
    """Return a YAML document of mappings, lists, texts, numbers, booleans and None.

    The order of mappings stays. Keys become texts by `str`, so a key None becomes "None". Tuples
    become lists. NaN and infinities are written in YAML's form, such as `.nan`. Texts that a reader
    could take for another type are quoted, and texts of several ASCII lines become literal blocks.
    The document ends with a newline.

    Raises:
        TypeError: a value is of another type, such as a set or bytes.
    """
    if _is_scalar(value):
        return f"{_scalar(value)}\n"
    return "".join(f"{line}\n" for line in _lines(value))


def _lines(value: object) -> Iterator[str]:
    """Yield the lines of a mapping or list, without newlines. Yield none if it is empty.

    Raise TypeError for another type.
    """
    if isinstance(value, Mapping):
        for key, inner in value.items():
            name = _scalar(str(key))
            if len(name) > SIMPLE_KEY_CHARACTERS_MAX:
                yield f"? {name}"
                name = ""
            yield from _entry(f"{name}:", inner, in_list=False)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _entry("-", inner, in_list=True)
    else:
        raise TypeError(f"{type(value).__name__} is not a JSON value")


def _entry(lead: str, value: object, in_list: bool) -> Iterator[str]:
    if isinstance(value, str) and _fits_block(value):
        yield f"{lead} |{'' if value.endswith(chr(10)) else '-'}"
        yield from (f"  {line}" if line else "" for line in value.removesuffix("\n").split("\n"))
    elif _is_scalar(value):
        yield f"{lead} {_scalar(value)}"
    elif in_list:
        # The first line of the value is written after the dash.
        for place, line in enumerate(_lines(value)):
            yield f"{'  ' if place else '- '}{line}" if line else ""
    else:
        yield lead
        yield from (f"  {line}" if line else "" for line in _lines(value))


def _is_scalar(value: object) -> bool:
    return not isinstance(value, Mapping | list | tuple) or not value


def _scalar(value: object) -> str:
    if isinstance(value, str):
        is_plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS
        return value if is_plain else _quote(value)
    if isinstance(value, float):
        return _number(value)
    return json.dumps(value)


def _number(value: float) -> str:
    if not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    digits, exponent, power = repr(value).partition("e")
    # Without the point, YAML 1.1 would read 1e-05 as a text.
    return f"{digits if '.' in digits else f'{digits}.0'}{exponent}{power}"


def _quote(text: str) -> str:
    quoted = "".join(map(_escape_character, text))
    return f'"{quoted}"'


def _escape_character(character: str) -> str:
    if character.isprintable() and character not in '"\\' and ord(character) < 0xFFFE:
        return character
    if ord(character) > 0xFFFF:
        return f"\\U{ord(character):08x}"
    return json.dumps(character)[1:-1]


def _fits_block(text: str) -> bool:
    """Whether a text with several lines can be written unquoted as a literal block.

    Only printable ASCII fits, without blank space at the beginning and at the end, except a final
    newline.
    """
    body = text.removesuffix("\n")
    return (
        "\n" in text
        and body.replace("\n", "").isprintable()
        and body.isascii()
        and body[:1] not in ("", "\n", " ")
        and body[-1:] not in ("\n", " ")
    )
