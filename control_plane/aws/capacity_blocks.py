"""The usable time of a capacity block: from the block's start until EC2 begins to terminate the
block's instances.

Source: Amazon EC2 user guide, "Work with Capacity Blocks" (EC2 begins to terminate instances 30
minutes before the end of the reservation) and "View Capacity Blocks" (the states).
"""

from typing import Final

MINUTE_MS: Final = 60_000
# The time before a block's end at which EC2 begins to terminate the block's instances.
BLOCK_MARGIN_MS: Final = 30 * MINUTE_MS
# The time before the beginning of these terminations at which EC2 sends a warning.
BLOCK_WARNING_MS: Final = 10 * MINUTE_MS
# The states of a block that will never be usable again.
_OVER: Final = frozenset(
    {"expired", "cancelled", "cancelling", "failed", "payment-failed", "unsupported"}
)
_ACTIVE: Final = "active"


def is_block_over(state: str) -> bool:
    """Return whether a block in this EC2 state will never be usable again.

    Return True for expired, cancelled, cancelling, failed, payment-failed and unsupported. Return
    False for all other states, also for unknown states.
    """
    return state in _OVER


def has_block_begun(state: str) -> bool:
    """Return whether instances can be launched into a block in this EC2 state: only in `active`."""
    return state == _ACTIVE


def block_use_left_ms(ends_ms: int, now_ms: int) -> int:
    """Return the ms until EC2 begins to terminate a block's instances; negative afterwards.

    `ends_ms` is the block's end, and `now_ms` the current time, both in epoch ms.
    """
    return ends_ms - BLOCK_MARGIN_MS - now_ms
