"""Notice that a machine is about to end, as a file announces it on local clusters."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from detcloud.shared.files import read_json_object


@dataclass(frozen=True, slots=True)
class Notice:
    """Notice that the machine ends at `deadline_ms` (epoch milliseconds)."""

    deadline_ms: int
    reason: str


class FileNotices:
    """Notices in a JSON file, `{"deadline_ms": int, "reason": str}`: local clusters, tests."""

    is_end_likely = False

    def __init__(self, path: Path) -> None:
        self._path = path

    def poll(self) -> Notice | None:
        """The file's notice, None without one; a file that says something else is no notice."""
        fields = read_json_object(self._path)
        if fields is None or not isinstance(fields.get("deadline_ms"), int):
            return None
        return Notice(fields["deadline_ms"], str(fields.get("reason") or "interruption notice"))
