"""The random source, the rates and the counts of a simulated cluster's faults."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from control_plane.state.memory import MemoryTable
from simulator.faults.fault_rates import FaultRates

# The maximum nesting of events that run in the middle of an operation.
DEPTH_MAX = 3


@dataclass
class FaultState:
    """The faults of all hosts, of the cloud and of the network."""

    random: Random
    """The source of faults and delays."""
    rates: FaultRates
    """The current rates."""
    run_due_events: Callable[[], None]
    """Runs an event that is due soon, in the middle of an operation."""
    depth: int = 0
    """The current nesting of interleaved operations."""
    stale_rows: MemoryTable | None = None
    """The older copy of the table from which the due index is read. None if it is not stale."""
    counts: dict[str, int] = field(default_factory=dict)
    """The number of injected faults by name."""

    def draw_fault(self, name: str, rate: float) -> bool:
        """Return True with the probability `rate`, and count the fault `name` then.

        A rate of 0 draws no random number.
        """
        if not rate or self.random.random() >= rate:
            return False
        self.count_fault(name)
        return True

    def count_fault(self, name: str) -> None:
        """Increase the count of a fault by 1."""
        self.counts[name] = self.counts.get(name, 0) + 1

    def draw_race(self) -> None:
        """Run another event in the middle of an operation, with the probability of `races`.

        Do nothing at the maximum nesting.
        """
        if self.depth < DEPTH_MAX and self.draw_fault("races", self.rates.races):
            self.interleave()

    def interleave(self) -> None:
        """Run another event in the middle of an operation."""
        self.depth += 1
        try:
            self.run_due_events()
        finally:
            self.depth -= 1
