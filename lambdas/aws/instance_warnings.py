"""EC2's warnings about instances and capacity blocks, as notices."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from control_plane.aws.capacity_blocks import BLOCK_MARGIN_MS, BLOCK_WARNING_MS
from control_plane.fleet.notices import InstanceNotice

INTERRUPTION = "EC2 Spot Instance Interruption Warning"
REBALANCE = "EC2 Instance Rebalance Recommendation"
BLOCK_ENDS = "Capacity Block Reservation Expiration Warning"
# EC2 warns two minutes before it takes an instance away.
WARNING_MS = 120_000


def read_warning(event: Mapping[str, Any]) -> InstanceNotice:
    """Return the notice of an event. That of a capacity block names no instance but the
    reservation. Raises ValueError for another event.
    """
    what, detail = event["detail-type"], event["detail"]
    if what == BLOCK_ENDS:
        return InstanceNotice(detail["capacity-reservation-id"], _block_end_ms(event))
    if what == REBALANCE:
        return InstanceNotice(detail["instance-id"])
    if what == INTERRUPTION:
        return InstanceNotice(detail["instance-id"], _epoch_ms(event["time"]) + WARNING_MS)
    raise ValueError(f"an event of the type {what!r} is none that we asked for")


def _block_end_ms(event: Mapping[str, Any]) -> int:
    """The time at which EC2 starts to terminate the instances of a capacity block.

    It is derived from the block's end or, since EC2 does not document the format of that field,
    from the time of the warning.
    """
    warned_ms = _epoch_ms(event["time"]) + BLOCK_WARNING_MS
    try:
        return _epoch_ms(event["detail"]["end-date"]) - BLOCK_MARGIN_MS
    except (KeyError, TypeError, ValueError):
        return warned_ms


def _epoch_ms(moment: str) -> int:
    return int(datetime.fromisoformat(moment).timestamp() * 1000)
