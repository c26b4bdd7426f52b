"""Conversion of an agent's lines about the use of slots into messages to the trial."""

from collections.abc import Mapping
from typing import Any

from control_plane.actors.messages.trial_use import LowUseReported, UseReported
from control_plane.actors.use import Use
from control_plane.agents.report_values import parse_number

_MS_MAX = 1 << 53


def to_use(epoch: int, node_rank: int, line: Mapping[str, Any]) -> UseReported:
    """Convert the line with a node's sums. Raises KeyError or ValueError for a malformed line.

    No part may exceed the measured time.
    """
    measured_ms = _count(line["measured_ms"], _MS_MAX)
    parts = (_count(line[name], measured_ms) for name in ("busy_ms", "low_ms", "memory_ms"))
    return UseReported(epoch, Use(measured_ms, *parts), node_rank)


def to_low_use(epoch: int, node_rank: int, line: Mapping[str, Any]) -> LowUseReported:
    """Convert the line about the begin or end of low use.

    Raises KeyError, OverflowError or ValueError for a malformed line.
    """
    percent, is_low = parse_number(line["percent"]), line["is_low"]
    if not isinstance(is_low, bool) or not 0 <= percent <= 100:
        raise ValueError(line)
    return LowUseReported(epoch, is_low, percent, _count(line["time_ms"], _MS_MAX), node_rank)


def _count(value: object, most: int) -> int:
    """Return a non-negative integer up to a limit. Raises ValueError for other values."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise ValueError(value)
    return value
