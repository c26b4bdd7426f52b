"""The faults of a simulated cluster as they are drawn: at which rates, and how often each was."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from control_plane.state.memory import MemoryTable
from lambdas.simulation.fault_rates import FaultRates

# Events in the middle of an operation may be interleaved with others in turn, so deep.
DEPTH_MAX = 3


@dataclass
class FaultState:
    """The faults of all hosts and the network.

    Attributes:
        random: what faults and delays are drawn from.
        rates: how often which fault is injected.
        run_due_events: runs what is due soon, in the middle of an operation.
        depth: how many operations are interleaved now.
        stale_rows: the rows that the index of due rows is read from, where it is stale.
        counts: how many faults were injected, by name.
    """

    random: Random
    rates: FaultRates
    run_due_events: Callable[[], None]
    depth: int = 0
    stale_rows: MemoryTable | None = None
    counts: dict[str, int] = field(default_factory=dict)

    def draw_fault(self, name: str, rate: float) -> bool:
        """Draw whether a fault is injected, and count it."""
        if not rate or self.random.random() >= rate:
            return False
        self.count_fault(name)
        return True

    def count_fault(self, name: str) -> None:
        """Count a fault that is injected."""
        self.counts[name] = self.counts.get(name, 0) + 1

    def draw_race(self) -> None:
        """Draw whether other events come in the middle of an operation, and run them."""
        if self.depth < DEPTH_MAX and self.draw_fault("races", self.rates.races):
            self.interleave()

    def interleave(self) -> None:
        """Run other events in the middle of an operation."""
        self.depth += 1
        try:
            self.run_due_events()
        finally:
            self.depth -= 1
