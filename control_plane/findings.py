"""Findings: what is wrong with values of a configuration, and how messages show values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

KIND_NAMES: Final = {dict: "a map", list: "a list", tuple: "a list", type(None): "null"}

VALUE_CHARACTERS_MAX: Final = 60
NAMES_SHOWN_MAX: Final = 12

Loc = tuple[str | int, ...]
"""Keys and list positions from the root of a configuration, or of one section, down to a value."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem with the value at `loc`, before its line in the file is known."""

    loc: Loc
    message: str
    hint: str = ""
    value: object = None


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
    text = json.dumps(value, ensure_ascii=False, default=repr)
    if len(text) > VALUE_CHARACTERS_MAX:
        return text[: VALUE_CHARACTERS_MAX - 3] + "..."
    return text


def nearest_name_hint(name: str, known: Iterable[str]) -> str:
    """Return a hint at the known name most like `name`, or at all of them where they are few."""
    # Imported here for the bench's cold starts: most processes never refuse a name.
    import difflib

    names = sorted(known)
    close = difflib.get_close_matches(name[:100], names, n=1)
    if close:
        return f"did you mean {close[0]}?"
    return "known here: " + ", ".join(names) if 0 < len(names) <= NAMES_SHOWN_MAX else ""


def shown_count(count: int) -> str:
    """Return a number as a message shows it."""
    return str(count) if count < 10**18 else "more than 10**18"
