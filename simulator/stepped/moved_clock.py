"""Virtual time that a test moves."""

from control_plane.simulation.virtual_clock import VirtualClock

START_MS = 1_700_000_000_000


class MovedClock:
    """The base of stepped clusters and fleets. A test moves the time."""

    clock: VirtualClock

    @property
    def now_ms(self) -> int:
        """The virtual time in epoch ms. A test may set it, also to an earlier time."""
        return START_MS + self.clock.now_ms

    @now_ms.setter
    def now_ms(self, now_ms: int) -> None:
        self.clock.now_ms = now_ms - START_MS
