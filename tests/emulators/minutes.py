"""Minutes of a cluster on this machine: repeated calls of the tick."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

# Shorter than a minute, because tests wait for ticks.
TICK_SECONDS = 2.0


class Ticking(Protocol):
    """A cluster that ticks each `tick_seconds`. `failures`: errors of ticks."""

    tick_seconds: float
    failures: list[str]

    def tick(self) -> object:
        """Run the tick. Raise the tick's error."""


@contextmanager
def minutes(cluster: Ticking, seconds_max: float) -> Iterator[None]:
    """Tick until the block ends, and wait for the last tick for so long."""
    stopped = threading.Event()

    def run() -> None:
        ticked_at = time.monotonic() - cluster.tick_seconds
        while not stopped.wait(0.1):
            if time.monotonic() < ticked_at + cluster.tick_seconds:
                continue
            try:
                cluster.tick()
            except Exception as error:
                cluster.failures.append(str(error))
            ticked_at = time.monotonic()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(seconds_max)
