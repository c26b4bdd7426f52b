"""Notice that this machine is about to end: its sources, and how it reaches the trials."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from detcloud.shared.notices import Notice

if TYPE_CHECKING:
    from collections.abc import Mapping


class NoticeSource(Protocol):
    """A source of notices, asked twice a second; it must not block or raise."""

    @property
    def is_end_likely(self) -> bool:
        """Whether the cloud advises to leave the machine, with no end announced yet."""

    def poll(self) -> Notice | None:
        """The notice that stands now, None without one."""


def with_notice(directives: Mapping[str, Any], notice: Notice | None) -> dict[str, Any]:
    """The cluster's directives with this machine's notice in them; the earlier deadline counts."""
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
