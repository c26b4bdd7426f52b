"""What a commit put out, piece by piece and without defaults: the journal keeps a digest of each,
replay compares them, and a field that is added with a default changes none.

A piece is named after a field of the state, or `P:` and a part, `R:` and a row outside, `M:` and a
receiver, or `T` for the timers.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING
from hashlib import sha256
from typing import Any

from control_plane.actors.step import SetTimer
from control_plane.dispatch.kinds import Encoded, Kind
from control_plane.state.table import Key

OUTBOX = "outbox/"
# More receivers are one piece: a digest of each would fill the row.
RECEIVERS_MAX = 48
GONE = b"-"

PART, ROW, MAIL, TIMERS = "P:", "R:", "M:", "T"
_FAMILIES = {PART: "part ", ROW: "row ", MAIL: "messages to "}


def digest_of(piece: bytes) -> str:
    """Eight hexadecimal digits."""
    return sha256(piece).hexdigest()[:8]


def changed_fields(kind: Kind, before: Any, after: Any) -> Iterator[tuple[str, bytes]]:
    """Fields of the state that a fold changed; of a new actor, those that are no default."""
    known = kind.defaults if before is None else before.__dict__
    for name, value in after.__dict__.items():
        same = known.get(name, MISSING)
        if same is value:
            continue
        encoded = kind.encode_field(name, value)
        if same is MISSING or encoded != kind.encode_field(name, same):
            yield name, encoded


def part_pieces(kind: Kind, parts: Mapping[str, object | None]) -> Iterator[tuple[str, bytes]]:
    """Parts written; those of a spilled outbox are the messages once more."""
    for name, value in parts.items():
        if not name.startswith(OUTBOX):
            yield PART + name, GONE if value is None else kind.essence(name, value)


def row_pieces(rows: Mapping[Key, bytes | None]) -> Iterator[tuple[str, bytes]]:
    """Rows outside the actor."""
    for key, body in rows.items():
        yield f"{ROW}{key.partition}/{key.sort}", GONE if body is None else body


def mail_pieces(sends: Mapping[str, Sequence[Encoded]]) -> Iterator[tuple[str, bytes]]:
    """Messages by receiver; of too many receivers, one piece."""
    told = {
        to: b",".join(b'["%s",%s]' % (name.encode(), body) for name, body in messages)
        for to, messages in sends.items()
    }
    if len(told) > RECEIVERS_MAX:
        yield f"{MAIL}*", b",".join(b'["%s",%s]' % (to.encode(), m) for to, m in told.items())
        return
    for to, listed in told.items():
        yield MAIL + to, b"[%s]" % listed


def timer_pieces(kind: Kind, timers: Sequence[SetTimer]) -> Iterator[tuple[str, bytes]]:
    """All timers set, in order."""
    if timers:
        set_at = (
            b'[%d,"%s",%s]' % (timer.due_ms, name.encode(), body)
            for timer in timers
            for name, body in (kind.encode_message(timer.message),)
        )
        yield TIMERS, b"[%s]" % b",".join(set_at)


def called(piece: str) -> str:
    """A piece's name for people: `status`, `part trials/0`, `messages to trial#7`."""
    if piece == TIMERS:
        return "timers"
    if piece == f"{MAIL}*":
        return "messages"
    return _FAMILIES[piece[:2]] + piece[2:] if piece[:2] in _FAMILIES else piece


def rank(piece: str) -> int:
    """State before parts before rows before messages before timers."""
    families = (PART, ROW, MAIL)
    if piece == TIMERS:
        return len(families) + 1
    return families.index(piece[:2]) + 1 if piece[:2] in families else 0
