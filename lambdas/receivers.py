"""Advancing the receiver of a new message after an event of the cloud.

Usually the sender's process has already advanced the receiver when the event arrives. Therefore an
actor without mail costs only one read.
"""

import logging
from collections.abc import Callable

from control_plane.engine.advancer import BUDGET_MS
from control_plane.engine.engine import Engine
from control_plane.state.table import TableError
from lambdas.clock import RESERVE_MS

log = logging.getLogger(__name__)


class NotAdvanced(Exception):
    """An actor could not be advanced now. The cloud must deliver the event again."""


def advance_receiver(
    engine: Engine, address: str, left_ms: Callable[[], int], *, looks_first: bool = True
) -> bool:
    """Advance the actor at `address`, then the receivers of new mail, until no time is left.

    To advance an actor means to apply the messages in the mailbox and to commit the changes and the
    new messages. Return False if the actor has no mail, and True otherwise. With
    `looks_first=False`, always return True. Raises NotAdvanced if no time is left, or, after a
    logged warning, if the state table fails.

    Args:
        left_ms: returns the time until the function is stopped. RESERVE_MS of it is not used.
        looks_first: whether to check for mail first. A caller that has just read the message passes
            False.
    """
    budget_ms = min(BUDGET_MS, left_ms() - RESERVE_MS)
    if budget_ms <= 0:
        raise NotAdvanced(f"no time is left for {address}")
    try:
        if looks_first and not engine.has_mail(address):
            return False
        engine.advance_until_idle((address,), budget_ms=budget_ms)
    except TableError as error:
        log.warning("%s was not advanced: %s", address, error)
        raise NotAdvanced(f"{address} was not advanced") from error
    return True
