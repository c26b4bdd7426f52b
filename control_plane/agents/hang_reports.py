"""Conversion of an agent's lines about hanging runs into messages to the trial."""

from collections.abc import Mapping
from typing import Any

from control_plane.actors.messages.trial_hangs import (
    PLACE_CHARACTERS_MAX,
    PLACES_MAX,
    HangReported,
    StacksReported,
)

_MS_MAX = 1 << 53
_RANK_MAX = 1 << 20


def to_hang(epoch: int, line: Mapping[str, Any]) -> HangReported:
    """Convert the line of a hang, or of the end of a hang. Raises KeyError or ValueError."""
    silent_ms = _count(line["silent_ms"], _MS_MAX)
    return HangReported(epoch, silent_ms, _count(line.get("timeout_ms", 0), _MS_MAX))


def to_stacks(epoch: int, line: Mapping[str, Any]) -> StacksReported:
    """Convert the line with the places of hanging processes, at most PLACES_MAX.

    Texts are cut. Raises KeyError, TypeError or ValueError for a malformed line.
    """
    places = [
        (_count(rank, _RANK_MAX), str(place)[:PLACE_CHARACTERS_MAX])
        for rank, place in line["places"][:PLACES_MAX]
    ]
    return StacksReported(epoch, tuple(places))


def _count(value: object, most: int) -> int:
    """Return a non-negative integer up to a limit. Raises ValueError for other values."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise ValueError(value)
    return value
