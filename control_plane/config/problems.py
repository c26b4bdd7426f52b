"""Problems of a configuration: the place, the value, the fault and the advice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from control_plane.findings import printable_line


@dataclass(frozen=True, slots=True)
class Problem:
    """A reason for the refusal of a configuration."""

    path: str
    """The path of the value, like `bind_mounts[0].host_path`. "" for the whole file."""
    line: int | None
    """The line in the user's file, from 1. None for a value that is not in the file."""
    value: object
    """The wrong value, for display, or None."""
    message: str
    """The fault, for example "must be at least 1"."""
    hint: str = ""
    """The advice to the user, or ""."""

    def text(self, file: str) -> str:
        """Return the problem as the printable line `FILE:LINE: path: message (hint)`.

        An absent line, path or hint is left out.

        Args:
            file: the name of the user's file.
        """
        place = file if self.line is None else f"{file}:{self.line}"
        parts = [place, self.path, self.message] if self.path else [place, self.message]
        return printable_line(": ".join(parts) + (f" ({self.hint})" if self.hint else ""))


class ConfigInvalid(ValueError):
    """The error for a refused configuration, with all reasons in `problems`."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        """Set the problems in the given order, and the message: a line for each problem."""
        self.problems = tuple(problems)
        super().__init__("\n".join(problem.text("config") for problem in self.problems))
