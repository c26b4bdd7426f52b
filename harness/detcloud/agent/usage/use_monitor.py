"""The use of a run's slots on this node, and the records that the cluster gets.

The sampler's thread adds samples, and the watching thread appends the records.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from detcloud.agent.assignment.slot_sharing import slot_sharers
from detcloud.agent.usage.low_use_watch import LowUseWatch
from detcloud.agent.usage.use_sums import UseSums

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from detcloud.agent.allocation.agent_report import AgentReport
    from detcloud.agent.usage.low_use_watch import LowUse
    from detcloud.agent.usage.use_sums import SlotSample

REPORT_MS = 600_000
"""The time between two records of a running allocation."""


class UseMonitor:
    """The sums of an allocation's samples.

    Attributes:
        slots: the ids of the allocation's slots on this node.
        sharers: the number of trials that may share the slot.
    """

    def __init__(
        self,
        slots: Sequence[int] = (),
        sums: UseSums | None = None,
        watch: LowUseWatch | None = None,
        sharers: int = 1,
    ) -> None:
        """Begin with the sums of an earlier agent, or with empty sums."""
        self.slots = tuple(slots)
        self.sharers = sharers
        self._sums = sums or UseSums()
        self._watch = watch
        self._reported = self._sums
        self._report_at_ms: int | None = None
        self._changes: list[LowUse] = []
        self._lock = threading.Lock()

    @classmethod
    def of_spec(
        cls, spec: Mapping[str, Any] | None, records: Iterable[Mapping[str, Any]]
    ) -> UseMonitor:
        """Return the monitor of a run, with the sums of the last `use` record."""
        spec = spec or {}
        listed = spec.get("slots")
        slots = [slot for slot in listed if type(slot) is int] if isinstance(listed, list) else []
        uses = [UseSums.of_record(record) for record in records if record.get("kind") == "use"]
        watch = LowUseWatch.of_spec(spec)
        return cls(slots, uses[-1] if uses else None, watch, slot_sharers(spec))

    def add(self, samples: Sequence[SlotSample], elapsed_ms: int, now_ms: int) -> None:
        """Add a sample for each slot with a known use. Each sample stands for `elapsed_ms`."""
        with self._lock:
            for sample in samples:
                self._sums = self._sums.add(sample, elapsed_ms)
            change = self._watch.check(self._sums, now_ms) if self._watch else None
            if change is not None:
                self._changes.append(change)

    def report_to(self, report: AgentReport, now_ms: int) -> None:
        """Append the sums every REPORT_MS, and each begin and end of low use.

        Raise OSError if a write fails. A later call repeats the write.
        """
        if self._report_at_ms is None:
            self._report_at_ms = now_ms + REPORT_MS
        if self._changes or now_ms >= self._report_at_ms:
            self.finish(report)
            self._report_at_ms = now_ms + REPORT_MS
        while self._changes:
            report.append("low_use", **self._changes[0].fields())
            self._changes.pop(0)

    def finish(self, report: AgentReport) -> None:
        """Append sums that differ from the last record. Raise OSError if a write fails."""
        with self._lock:
            sums = self._sums
        if sums != self._reported:
            report.append("use", **sums.fields())
            self._reported = sums
