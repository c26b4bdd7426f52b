"""Findings: what is wrong with values of a configuration, and how messages show values."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

KIND_NAMES: Final = {dict: "a map", list: "a list", tuple: "a list", type(None): "null"}

VALUE_CHARACTERS_MAX: Final = 60
NAMES_SHOWN_MAX: Final = 12
# As max is like maxval; below it, idle_timeout would be like bind_mounts.
LIKENESS_MIN: Final = 0.66

MASK: Final = "********"
_URL_CREDENTIALS: Final = re.compile(r"(?<=://)[^/?#\s]+(?=@)")
_INVISIBLE: Final = ("Cc", "Cf", "Cs", "Zl", "Zp")

Loc = tuple[str | int, ...]
"""Keys and list positions from the root of a configuration, or of one section, down to a value."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem with the value at `loc`, before its line in the file is known."""

    loc: Loc
    message: str
    hint: str = ""
    value: object = None

    @property
    def shown_value(self) -> object:
        """The value without logins in URLs."""
        return mask_url_credentials(self.value) if isinstance(self.value, str) else self.value


def mask_url_credentials(text: str) -> str:
    """Mask what stands before the @ of each URL in a text."""
    return _URL_CREDENTIALS.sub(MASK, text)


def printable_line(text: str) -> str:
    """Escape the characters of a text that could steer a terminal, reorder it or break its line."""
    return text if text.isprintable() else "".join(map(_escape_invisible, text))


def _escape_invisible(character: str) -> str:
    # JSON leaves the delete character as it is.
    is_invisible = unicodedata.category(character) in _INVISIBLE
    return f"\\u{ord(character):04x}" if is_invisible else character


def path_text(loc: Sequence[str | int]) -> str:
    """Render a place: ('bind_mounts', 0, 'host_path') -> 'bind_mounts[0].host_path'."""
    text = ""
    for key in loc:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else key
    return text


def value_text(value: object) -> str:
    """Return a value as a message shows it: scalars shortened, collections only by their kind."""
    if type(value) in KIND_NAMES:
        return KIND_NAMES[type(value)]
    text = mask_url_credentials(json.dumps(value, ensure_ascii=False, default=repr))
    if len(text) > VALUE_CHARACTERS_MAX:
        return text[: VALUE_CHARACTERS_MAX - 3] + "..."
    return text


def nearest_name_hint(name: str, known: Iterable[str]) -> str:
    """Return a hint at the known name most like `name`, or at all of them where they are few."""
    # Imported here for the bench's cold starts: most processes never refuse a name.
    import difflib

    names = sorted(known)
    close = difflib.get_close_matches(name[:100], names, n=1, cutoff=LIKENESS_MIN)
    if close:
        return f"did you mean {close[0]}?"
    return "known here: " + ", ".join(names) if 0 < len(names) <= NAMES_SHOWN_MAX else ""


def shown_count(count: int) -> str:
    """Return a number as a message shows it."""
    return str(count) if count < 10**18 else "more than 10**18"
