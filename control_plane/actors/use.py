"""The measured use of slots: sums of samples that agents take of GPUs and processes.

Shares are weighted with time and summed as whole slot milliseconds, so that sums of several slots,
nodes and allocations are exact. A slot that computes at 50 % for 10 s has 5,000 ms of busy time.
"""

from dataclasses import astuple, dataclass

LOW_PERCENT = 5
"""The use in percent below which the time of a slot counts as low use in reports."""


@dataclass(frozen=True, slots=True)
class Use:
    """Sums over the measured time of slots, in slot milliseconds."""

    measured_ms: int = 0
    """The time for which the use of the slots is known."""
    busy_ms: int = 0
    """The measured time, weighted with the share of computation."""
    low_ms: int = 0
    """The measured time with less than LOW_PERCENT of computation."""
    memory_ms: int = 0
    """The measured time, weighted with the share of the slot's memory that was in use."""

    def __add__(self, other: "Use") -> "Use":
        """Return the sum of two uses."""
        return Use(
            self.measured_ms + other.measured_ms,
            self.busy_ms + other.busy_ms,
            self.low_ms + other.low_ms,
            self.memory_ms + other.memory_ms,
        )

    @property
    def percent(self) -> float | None:
        """The mean computation in percent. None without measured time."""
        return _percent(self.busy_ms, self.measured_ms)

    @property
    def memory_percent(self) -> float | None:
        """The mean share of memory in percent. None without measured time."""
        return _percent(self.memory_ms, self.measured_ms)

    def share_among(self, sharers: int) -> "Use":
        """Return the part of a slot's use that counts for each of `sharers` allocations."""
        return Use(*(value // sharers for value in astuple(self)))


NO_USE = Use()


def sum_uses(*uses: Use | None) -> Use | None:
    """Return the sum of the uses. None counts as no use. Return None without measured time."""
    total = NO_USE
    for use in uses:
        total += use or NO_USE
    return total if total.measured_ms else None


def use_values(use: Use | None) -> tuple[int, ...]:
    """Return the values of a use in the order of the fields. None has zeros."""
    return tuple(astuple(use or NO_USE))


def change_sum(total: Use | None, before: Use | None, after: Use | None) -> Use | None:
    """Return a sum in which `after` replaces `before`. Return None without measured time."""
    values = zip(use_values(total), use_values(before), use_values(after), strict=True)
    changed = Use(*(whole - old + new for whole, old, new in values))
    return changed if changed.measured_ms else None


def _percent(part_ms: int, whole_ms: int) -> float | None:
    return round(100 * part_ms / whole_ms, 1) if whole_ms > 0 else None
