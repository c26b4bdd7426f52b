"""Sums of samples of an allocation's slots on this node. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

LOW_PERCENT = 5
"""The use in percent below which the time of a slot counts as low use."""


class SlotSample(NamedTuple):
    """The use of a slot since the last sample."""

    percent: float
    """The share of computation, from 0 to 100."""
    memory: float
    """The share of the slot's memory that is in use, from 0 to 1."""


@dataclass(frozen=True)
class UseSums:
    """Sums since the start of the run, in ms of slot time. The cluster adds them up exactly."""

    measured_ms: int = 0
    """The time for which the use of the slots is known."""
    busy_ms: int = 0
    """The measured time, weighted with the share of computation."""
    low_ms: int = 0
    """The measured time with a use below LOW_PERCENT."""
    memory_ms: int = 0
    """The measured time, weighted with the share of memory."""

    def add(self, sample: SlotSample, elapsed_ms: int) -> UseSums:
        """Return the sums with a sample of a slot that stands for `elapsed_ms`.

        Shares outside their range are cut, so that no part exceeds the measured time.
        """
        elapsed_ms = max(0, elapsed_ms)
        share = min(1.0, max(0.0, sample.percent / 100))
        memory = min(1.0, max(0.0, sample.memory))
        return UseSums(
            self.measured_ms + elapsed_ms,
            self.busy_ms + int(elapsed_ms * share),
            self.low_ms + (elapsed_ms if sample.percent < LOW_PERCENT else 0),
            self.memory_ms + int(elapsed_ms * memory),
        )

    def fields(self) -> dict[str, int]:
        """Return the fields of a `use` record."""
        return asdict(self)

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> UseSums:
        """Return the sums in a `use` record. Return empty sums for a malformed record."""
        values = [record.get(name) for name in cls().fields()]
        counts = [value for value in values if type(value) is int and value >= 0]
        return cls(*counts) if len(counts) == len(values) else cls()
