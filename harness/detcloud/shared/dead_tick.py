"""The decision that a cluster's tick is dead, so that its machines must end themselves.

Once a minute, the tick of a deployed cluster terminates idle machines. If the tick is dead, nobody
does. Each answer to an agent has the age of the tick's last pass, measured by the server's clock.
The clock of the machine therefore cannot end the machine.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# The tick runs each minute. An hour allows the repair or the deployment of a broken tick, and
# limits the price of an idle machine.
TICK_SECONDS_MAX = 3600
"""The age of the tick's last pass from which the tick counts as dead."""
# After a restore of an older state, or a start of a stopped cluster, the age is high until the next
# pass. A single server with a wrong clock also sends a wrong age.
CONFIRM_SECONDS = 300
"""The time for which all answers must agree that the tick is dead."""
DEAD_TICK = "dead_tick"
"""The cause in the notice of a machine that ends itself because the tick is dead."""


class TickWatch:
    """A watch on the age of the tick, which the answers of the cluster contain.

    Args:
        monotonic: returns seconds that no clock change affects.

    Attributes:
        is_dead: whether the tick is dead. True if the age was above TICK_SECONDS_MAX in all answers
            of the last CONFIRM_SECONDS. Only an answer changes the value.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.is_dead = False
        self._monotonic = monotonic
        self._old_since: float | None = None

    def record_age(self, age_ms: object) -> None:
        """Record the age of the tick's last pass in an answer, in milliseconds.

        None or another type than int is an answer without an age, as older clusters and clusters
        without a pass give. Such an answer counts like a low age.
        """
        if not isinstance(age_ms, int) or age_ms <= TICK_SECONDS_MAX * 1000:
            self._old_since, self.is_dead = None, False
            return
        now = self._monotonic()
        if self._old_since is None:
            self._old_since = now
        self.is_dead = self.is_dead or now - self._old_since >= CONFIRM_SECONDS
