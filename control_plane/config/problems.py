"""Problems of a configuration: where, which value, what was expected and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from control_plane.findings import printable_line


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
        """Render `FILE:LINE: path: message (hint)`, leaving out what is not known."""
        place = file if self.line is None else f"{file}:{self.line}"
        parts = [place, self.path, self.message] if self.path else [place, self.message]
        return printable_line(": ".join(parts) + (f" ({self.hint})" if self.hint else ""))


class ConfigInvalid(ValueError):
    """A configuration was refused; `problems` holds every reason, sorted by line."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(problem.text("config") for problem in self.problems))
