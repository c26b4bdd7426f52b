"""Where notice of an approaching end of this machine comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from detcloud.agent.directory import read_object

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Notice:
    """The machine ends at `deadline_ms` (epoch milliseconds)."""

    deadline_ms: int
    reason: str


class NoticeSource(Protocol):
    """Answers whether an end was announced. Called twice a second; must not block or raise."""

    def poll(self) -> Notice | None:
        """The notice that stands now, None without one."""


class FileNotices:
    """A notice in a JSON file, `{"deadline_ms": int, "reason": str}`: local clusters, tests."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def poll(self) -> Notice | None:
        """The file's notice; a file that says something else is no notice."""
        found = read_object(self._path)
        if found is None or not isinstance(found.get("deadline_ms"), int):
            return None
        return Notice(found["deadline_ms"], str(found.get("reason") or "interruption notice"))


def with_notice(directives: Mapping[str, Any], notice: Notice | None) -> dict[str, Any]:
    """The cluster's directives with this machine's notice in them: the earlier deadline counts."""
    if notice is None:
        return dict(directives)
    preempt = directives.get("preempt")
    deadline = preempt.get("deadline_ms") if isinstance(preempt, dict) else None
    if isinstance(deadline, int) and deadline <= notice.deadline_ms:
        return dict(directives)
    return {
        **directives,
        "preempt": {"deadline_ms": notice.deadline_ms, "reason": notice.reason},
    }
