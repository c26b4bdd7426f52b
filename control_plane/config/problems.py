"""What is wrong with a configuration: where, which value, what was expected and what to do."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

KIND_NAMES: Final = {dict: "a map", list: "a list", tuple: "a list", type(None): "null"}

VALUE_CHARACTERS_MAX: Final = 60
NAMES_SHOWN_MAX: Final = 12

Loc = tuple[str | int, ...]
"""Keys and list positions from the root of a configuration down to one value."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One reason why a configuration is refused.

    `path` reads `searcher.max_trials` or `bind_mounts[0].host_path`, and is empty for the whole
    file. `line` counts from 1 in the user's file and is None for values from elsewhere.
    """

    path: str
    line: int | None
    value: object
    message: str
    hint: str = ""

    def text(self, file: str) -> str:
        """`FILE:LINE: path: message (hint)`, leaving out what is not known."""
        place = file if self.line is None else f"{file}:{self.line}"
        parts = [place, self.path, self.message] if self.path else [place, self.message]
        return ": ".join(parts) + (f" ({self.hint})" if self.hint else "")


class ConfigInvalid(ValueError):
    """A configuration was refused; `problems` holds every reason, sorted by line."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(problem.text("config") for problem in self.problems))


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem before its line is known."""

    loc: Loc
    message: str
    hint: str = ""
    value: object = None


def path_text(loc: Sequence[str | int]) -> str:
    """('bind_mounts', 0, 'host_path') -> 'bind_mounts[0].host_path'."""
    text = ""
    for key in loc:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else key
    return text


def value_text(value: object) -> str:
    """A value as a message shows it: scalars shortened, collections only by their kind."""
    if type(value) in KIND_NAMES:
        return KIND_NAMES[type(value)]
    text = json.dumps(value, ensure_ascii=False, default=repr)
    if len(text) > VALUE_CHARACTERS_MAX:
        return text[: VALUE_CHARACTERS_MAX - 3] + "..."
    return text


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint towards the known name most like `name`; if none is, all of them where few."""
    names = sorted(known)
    close = difflib.get_close_matches(name[:100], names, n=1)
    if close:
        return f"did you mean {close[0]}?"
    return "known here: " + ", ".join(names) if 0 < len(names) <= NAMES_SHOWN_MAX else ""
