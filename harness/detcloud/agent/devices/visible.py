"""The variables with which CUDA and ROCm limit a process to some of the machine's GPUs. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_NUMBER = re.compile(r"\s*([+-]?\d+)")


def visible_positions(
    text: str, uuids: Sequence[str], prefix: str = "GPU-", *, mixes: bool = False
) -> list[int]:
    """Return the positions of the visible devices in the order of the variable.

    An entry is a number, or a UUID or its beginning. An invalid entry ends the list: a negative or
    unknown number, an unknown UUID, or a beginning that several UUIDs share. A repeated device
    makes no device visible.

    Args:
        text: the value of the variable.
        uuids: the UUID of each device, in the order of the numbers.
        prefix: the beginning of all UUIDs.
        mixes: whether the list may contain both numbers and UUIDs. Otherwise, an entry of another
            kind than the first is invalid.
    """
    entries = text.split(",")
    by_uuid = is_uuid(entries[0], prefix)
    positions: list[int] = []
    for entry in entries:
        has_prefix = is_uuid(entry, prefix)
        if has_prefix != by_uuid and not mixes:
            break
        position = _find_uuid(entry, uuids) if has_prefix else _number(entry)
        if position is None or not 0 <= position < len(uuids):
            break
        if position in positions:
            return []
        positions.append(position)
    return positions


def is_uuid(entry: str, prefix: str) -> bool:
    """Return whether an entry is a UUID or a part of a UUID, rather than a number."""
    return entry.strip().upper().startswith(prefix)


def _find_uuid(entry: str, uuids: Sequence[str]) -> int | None:
    """Return the position of the only UUID that begins with the entry. None without such a UUID."""
    begin = entry.strip().upper()
    found = [place for place, uuid in enumerate(uuids) if uuid.upper().startswith(begin)]
    exact = [place for place in found if uuids[place].upper() == begin]
    found = exact or found
    return found[0] if len(found) == 1 else None


def _number(entry: str) -> int | None:
    """Return the number at the beginning of an entry, as C's strtoul does. None without digits."""
    match = _NUMBER.match(entry)
    return int(match[1]) if match else None
