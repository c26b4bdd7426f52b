"""Notices that a machine is about to end, and their source on local clusters: a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from detcloud.shared.files import read_json_object


@dataclass(frozen=True, slots=True)
class Notice:
    """A notice that the machine, or the trial on the machine, must end soon."""

    deadline_ms: int
    """The time of the end in epoch milliseconds."""
    reason: str
    """The reason of the end, for users."""


class FileNotices:
    """A source of notices for local clusters and tests: a JSON file at `path`.

    The file's form is `{"deadline_ms": int, "reason": str}`.
    """

    is_end_likely = False

    def __init__(self, path: Path) -> None:
        self._path = path

    def poll(self) -> Notice | None:
        """Read the notice in the file. The file stays, so later calls return the notice again.

        Return None if the file is missing, unreadable, malformed or has no integer `deadline_ms`. A
        missing, null or empty reason becomes "interruption notice", and a reason of another type
        becomes text. A past deadline is returned like any other.
        """
        fields = read_json_object(self._path)
        if fields is None or not isinstance(fields.get("deadline_ms"), int):
            return None
        return Notice(fields["deadline_ms"], str(fields.get("reason") or "interruption notice"))
