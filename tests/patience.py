"""How long tests wait for what must come: limits are for what never comes, not for what is slow."""

import time
from collections.abc import Callable
from typing import TypeVar

# A limit is what a quiet machine needs with room to spare; one that is busy may take so many times
# as long. Only a test that fails waits for all of it.
PATIENCE = 5

T = TypeVar("T")


def poll_until(look: Callable[[], T], seconds: float, what: str, pause_seconds: float) -> T:
    """Returns what `look` finds once that is true. Raises AssertionError, which names `what` was
    waited for, after PATIENCE times `seconds`.
    """
    limit = seconds * PATIENCE
    give_up_at = time.monotonic() + limit
    while not (seen := look()):
        assert time.monotonic() < give_up_at, f"{what}: waited {limit:.0f} s in vain"
        time.sleep(pause_seconds)
    return seen
