"""The time that passes while a cluster's instances end."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Clock:
    """Seconds that pass, and a wait for them."""

    seconds: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
