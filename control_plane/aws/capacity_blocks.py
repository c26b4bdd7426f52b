"""When a capacity block can be used: from its start until EC2 begins to end what is in it.

Source: Amazon EC2 user guide, "Work with Capacity Blocks" (instances begin to be ended 30 minutes
before the end of the reservation) and "View Capacity Blocks" (its states).
"""

from typing import Final

MINUTE_MS: Final = 60_000
# EC2 begins to end what is in a block so long before the block's end, and warns ten minutes before.
BLOCK_MARGIN_MS: Final = 30 * MINUTE_MS
BLOCK_WARNING_MS: Final = 10 * MINUTE_MS
# States in which a block will never, or never again, be of use.
_OVER: Final = frozenset(
    {"expired", "cancelled", "cancelling", "failed", "payment-failed", "unsupported"}
)
_ACTIVE: Final = "active"


def is_block_over(state: str) -> bool:
    """Whether a block in that state of EC2's will never be of use, or never again."""
    return state in _OVER


def has_block_begun(state: str) -> bool:
    """Whether instances can be launched into a block in that state."""
    return state == _ACTIVE


def block_use_left_ms(ends_ms: int, now_ms: int) -> int:
    """How long what runs in a block is left alone, given the block's end."""
    return ends_ms - BLOCK_MARGIN_MS - now_ms
