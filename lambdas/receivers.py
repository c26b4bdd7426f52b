"""The receivers of new mail, which the cloud tells a function about.

The sender of a message has usually gone on with its receiver by the time its event comes, so an
actor without mail costs one read.
"""

import logging
from collections.abc import Callable

from control_plane.engine.engine import BUDGET_MS, Engine
from control_plane.state.table import TableError
from lambdas.clock import RESERVE_MS

log = logging.getLogger(__name__)


class NotAdvanced(Exception):
    """An actor was not advanced now, and the event of its mail must come again."""


def advance_receiver(
    engine: Engine, address: str, left_ms: Callable[[], int], *, looks_first: bool = True
) -> bool:
    """Advance the actor that a message was sent to, as far as the time allows; returns whether it
    had mail.

    A caller that has just seen the message need not check for mail first. Raises NotAdvanced.
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
