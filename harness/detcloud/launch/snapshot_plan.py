"""The decisions of the process that keeps a folder: when to save, and which sizes to report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

NOTICE_SECONDS = 10.0
"""The time between snapshots after a notice of the machine's end."""
GROWTH_REPORTED = 1.1
"""The growth of a folder that is too large after which the log says so again."""


@dataclass(frozen=True)
class KeptSettings:
    """The field `snapshots` of a specification."""

    period_seconds: float
    """The time between snapshots while files change."""
    bytes_max: int
    """The largest size of all files."""

    @classmethod
    def of_spec(cls, fields: Mapping[str, Any] | None) -> KeptSettings | None:
        """Return the settings. None: no snapshots are to be saved."""
        period_ms, bytes_max = ((fields or {}).get(name) for name in ("period_ms", "bytes_max"))
        if type(period_ms) is not int or type(bytes_max) is not int or period_ms <= 0:
            return None
        return cls(period_ms / 1000, bytes_max)


class SnapshotPlan:
    """Decides when the folder is compared with the last snapshot. Pure: the caller provides the
    time.
    """

    def __init__(self, settings: KeptSettings, now: float) -> None:
        self._settings = settings
        self._compared_at = now
        self._has_notice = False
        self._reported_bytes = 0

    def is_due(self, now: float, *, has_notice: bool) -> bool:
        """Return whether to compare the folder now, and if so, note the time.

        After a notice of the machine's end, the first call returns True.
        """
        is_new = has_notice and not self._has_notice
        self._has_notice = has_notice
        period = self._settings.period_seconds
        seconds = min(period, NOTICE_SECONDS) if has_notice else period
        if not is_new and now - self._compared_at < seconds:
            return False
        self._compared_at = now
        return True

    def fits(self, size_bytes: int) -> bool:
        """Return whether a folder of this size may be saved."""
        if size_bytes <= self._settings.bytes_max:
            self._reported_bytes = 0
            return True
        return False

    def should_report(self, size_bytes: int) -> bool:
        """Return whether the log should say that the folder is too large, once for each growth."""
        if self._reported_bytes and size_bytes < self._reported_bytes * GROWTH_REPORTED:
            return False
        self._reported_bytes = size_bytes
        return True
