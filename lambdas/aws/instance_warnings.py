"""Conversion of EC2's warnings about instances and capacity blocks into notices."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from control_plane.aws.capacity_blocks import BLOCK_MARGIN_MS, BLOCK_WARNING_MS
from control_plane.fleet.notices import InstanceNotice

INTERRUPTION = "EC2 Spot Instance Interruption Warning"
REBALANCE = "EC2 Instance Rebalance Recommendation"
BLOCK_ENDS = "Capacity Block Reservation Expiration Warning"
# EC2 sends an interruption warning two minutes before the end of the instance.
WARNING_MS = 120_000


def read_warning(event: Mapping[str, Any]) -> InstanceNotice:
    """Return the notice for an EventBridge event of EC2.

    - An interruption warning gives the instance's end, two minutes after the event.
    - A rebalance recommendation gives a notice without an end.
    - A warning about a capacity block gives the block's end. The notice names the id of the
      reservation in place of an instance.

    Raises ValueError for another type of event or an invalid time, and KeyError for a missing
    field.
    """
    what, detail = event["detail-type"], event["detail"]
    if what == BLOCK_ENDS:
        return InstanceNotice(detail["capacity-reservation-id"], _block_end_ms(event))
    if what == REBALANCE:
        return InstanceNotice(detail["instance-id"])
    if what == INTERRUPTION:
        return InstanceNotice(detail["instance-id"], _epoch_ms(event["time"]) + WARNING_MS)
    raise ValueError(f"unexpected type of event: {what!r}")


def _block_end_ms(event: Mapping[str, Any]) -> int:
    """Return the time at which EC2 starts to terminate a capacity block's instances, in epoch ms.

    Usually this is 30 minutes before the block's end. If the end is missing or unreadable, it is 10
    minutes after the warning: EC2 does not document the format of the end. Raises ValueError and
    KeyError if the time of the warning is invalid or missing.
    """
    warned_ms = _epoch_ms(event["time"]) + BLOCK_WARNING_MS
    try:
        return _epoch_ms(event["detail"]["end-date"]) - BLOCK_MARGIN_MS
    except (KeyError, TypeError, ValueError):
        return warned_ms


def _epoch_ms(moment: str) -> int:
    """Convert an ISO 8601 time to epoch ms. Raises ValueError for another text."""
    return int(datetime.fromisoformat(moment).timestamp() * 1000)
