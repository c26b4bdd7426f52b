"""What a search method outside has still to be told: numbered events, in a ring of pieces.

An event takes 41 bytes and a piece 20 of them, so that one event more rewrites one row of less than
1 KB. A piece is used again once all that stood in it is acknowledged: nothing has to be deleted.
"""

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple
from uuid import UUID

from control_plane.searchers.method import ExitReason
from control_plane.searchers.parts import Parts

# Events that may wait for a method: told and unacknowledged, and those its trials can yet make.
EVENTS_MAX = 10_000
PER_PIECE = 20
PIECES = EVENTS_MAX // PER_PIECE + 2

_SLOT = struct.Struct("<QB16sqd")
_NOBODY = "00000000-0000-0000-0000-000000000000"
_REASONS = tuple(ExitReason)


class EventKind(IntEnum):
    """What an event tells. The numbers are stored."""

    INITIAL_OPERATIONS = 0
    TRIAL_CREATED = 1
    TRIAL_PROGRESS = 2
    VALIDATION_COMPLETED = 3
    TRIAL_EXITED_EARLY = 4
    TRIAL_CLOSED = 5


class Told(NamedTuple):
    """An event. `length` is a validation's; `value` its metric, or the units of a progress."""

    kind: EventKind
    request_id: str = _NOBODY
    length: int = 0
    value: float = 0.0
    reason: ExitReason | None = None


def write(parts: Parts, number: int, told: Told) -> None:
    """Puts event `number`, counted from 1, in its place."""
    name, place = _place(number)
    piece = bytearray(parts.read(name) or b"")
    piece.extend(bytes(max(0, place + _SLOT.size - len(piece))))
    # A reason stands where a validation has its length.
    length = told.length if told.reason is None else _REASONS.index(told.reason)
    packed = (number, told.kind, UUID(told.request_id).bytes, length, told.value)
    _SLOT.pack_into(piece, place, *packed)
    parts.write(name, bytes(piece))


def read(parts: Parts, first: int, last: int) -> Iterator[tuple[int, Told]]:
    """Events `first` to `last` with their numbers. It ends early at one that is no more, or not
    yet, where the pieces are of another moment than the numbers.
    """
    known: tuple[str, bytes] = ("", b"")
    for number in range(first, last + 1):
        name, place = _place(number)
        if name != known[0]:
            known = (name, parts.read(name) or b"")
        if place + _SLOT.size > len(known[1]):
            return
        stored, kind, request_id, length, value = _SLOT.unpack_from(known[1], place)
        if stored != number:
            return
        told = Told(EventKind(kind), str(UUID(bytes=request_id)), length, value)
        if told.kind is EventKind.TRIAL_EXITED_EARLY:
            told = told._replace(length=0, reason=_REASONS[length])
        yield number, told


def _place(number: int) -> tuple[str, int]:
    piece, slot = divmod(number - 1, PER_PIECE)
    return f"events/{piece % PIECES}", slot * _SLOT.size
