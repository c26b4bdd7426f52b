"""Findings: problems with values of a configuration, and how messages display values."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from detcloud.shared.dotted_paths import name_text
from detcloud.shared.json_escapes import json_escape
from detcloud.shared.masking import mask_urls

KIND_NAMES: Final = {dict: "a map", list: "a list", tuple: "a list", type(None): "null"}

VALUE_CHARACTERS_MAX: Final = 60
NAMES_SHOWN_MAX: Final = 12
# The similarity of `max` and `maxval`. With a lower limit, idle_timeout would be similar to
# bind_mounts.
LIKENESS_MIN: Final = 0.66

_INVISIBLE: Final = ("Cc", "Cf", "Cs", "Zl", "Zp")

Loc = tuple[str | int, ...]
"""A path to a value: keys and list positions from the root of a configuration or section."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem with a value of a configuration, without the line in the file."""

    loc: Loc
    """The path of the value."""
    message: str
    """The problem, such as "must be at least 1"."""
    hint: str = ""
    """The advice to the user, or ""."""
    value: object = None
    """The wrong value."""

    @property
    def shown_value(self) -> object:
        """The value for display, with the secrets in URLs masked."""
        return mask_urls(self.value) if isinstance(self.value, str) else self.value


def printable_line(text: str) -> str:
    """Return a text with escapes for characters that control terminals, reorder text or end lines.

    The escapes are those of JSON. Other characters stay unchanged.
    """
    return text if text.isprintable() else "".join(map(_escape_invisible, text))


def _escape_invisible(character: str) -> str:
    """Return the JSON escape of an invisible character. Return other characters unchanged."""
    return json_escape(character) if unicodedata.category(character) in _INVISIBLE else character


def path_text(loc: Sequence[str | int]) -> str:
    """Return a path as text: ('bind_mounts', 0, 'a.b') becomes 'bind_mounts[0]."a.b"'.

    Return "" for the empty path.
    """
    text = ""
    for key in loc:
        if isinstance(key, int):
            text += f"[{key}]"
        else:
            text += f".{name_text(key)}" if text else name_text(key)
    return text


def value_text(value: object) -> str:
    """Return a value as text for a message.

    Return the kind of a collection, for example "a map", and "null" for None. Other values become
    JSON with masked secrets in URLs, cut to at most VALUE_CHARACTERS_MAX characters. Values that
    JSON does not have become the JSON string of `repr`.
    """
    if type(value) in KIND_NAMES:
        return KIND_NAMES[type(value)]
    text = mask_urls(json.dumps(value, ensure_ascii=False, default=repr))
    if len(text) > VALUE_CHARACTERS_MAX:
        return text[: VALUE_CHARACTERS_MAX - 3] + "..."
    return text


def nearest_name_hint(name: str, known: Iterable[str]) -> str:
    """Return a hint with the known name that is most similar to `name`.

    If no name is similar, return a hint with all known names. Return "" instead for more than
    NAMES_SHOWN_MAX known names, and without known names. Only the first 100 characters of `name`
    are compared.
    """
    # Imported here for short cold starts (see the bench): most processes never refuse a name.
    import difflib

    names = sorted(known)
    close = difflib.get_close_matches(name[:100], names, n=1, cutoff=LIKENESS_MIN)
    if close:
        return f"did you mean {close[0]}?"
    return "known here: " + ", ".join(names) if 0 < len(names) <= NAMES_SHOWN_MAX else ""


def shown_count(count: int) -> str:
    """Return a number as text for a message. Return "more than 10**18" from 10**18 on."""
    return str(count) if count < 10**18 else "more than 10**18"
