"""Spilled outboxes: messages that do not fit into the commit of a fold.

The commit stores the messages in numbered parts of the actor. Later commits mail a few entries at a
time; an entry is a receiver with its messages.
"""

import zlib
from dataclasses import dataclass, replace
from typing import Any

from control_plane.engine import outputs
from control_plane.engine.actor_types import EncodedMessage, parse_compressed_json
from control_plane.engine.fold import ActorSnapshot, Fold
from control_plane.engine.head import PARTS, Header, Spill
from control_plane.evolve import evolve
from control_plane.state.table import Key

# The target size of the parts of a spilled outbox, before compression. Parts are larger if an
# outbox would have more than SPILL_PARTS_MAX parts.
SPILL_PART_BYTES_MAX = 256 * 1024
SPILL_PARTS_MAX = 30
SPILL_ROW_BYTES_MAX = 350 * 1024
# The number of receivers to which a commit sends a spilled outbox.
DRAINED_RECEIVERS_MAX = 90


@dataclass(frozen=True, slots=True)
class SpillPart:
    """The encoded body of a part of a spilled outbox, as a value of `Fold.parts`.

    The part is a row with messages that did not fit into the commit of a fold.
    """

    body: bytes
    """The compressed entries."""


def spill_outbox(before: ActorSnapshot, fold: Fold) -> Header:
    """Copy all messages of a fold into numbered parts, which later commits mail.

    Adds the parts to `fold.parts`, after the parts of an older spilled outbox. `fold.sends` stays
    unchanged, but the caller must not mail these messages in the same commit. Return the header
    that refers to the parts. Nothing is written to the table. The fold must have messages; this is
    not checked.
    """
    spill = before.header.spill
    first = spill.last + 1 if spill else 0
    bodies = _spill_parts(list(fold.sends.items()))
    for number, body in enumerate(bodies, first):
        fold.parts[f"{outputs.OUTBOX}{number:06d}"] = SpillPart(body)
    last = first + len(bodies) - 1
    remaining_spill = replace(spill, last=last) if spill else Spill(first, last)
    return evolve(before.header, spill=remaining_spill)


def spill_key(address: str, number: int) -> Key:
    """Return the key of a part of an actor's spilled outbox: `P#outbox/NUMBER` in the actor's
    partition.
    """
    return Key(address, f"{PARTS}{outputs.OUTBOX}{number:06d}")


def encode_spill(entries: list[tuple[str, list[EncodedMessage]]]) -> bytes:
    """Encode entries as the compressed body of a part of a spilled outbox.

    The messages are similar and compress well: the outbox of an experiment with a hundred thousand
    trials fits into one commit.

    Args:
        entries: receivers, each with the encoded messages for the receiver.
    """
    listed = [
        b'["%s",[%s]]'
        % (to.encode(), b",".join(b'["%s",%s]' % (n.encode(), body) for n, body in messages))
        for to, messages in entries
    ]
    return zlib.compress(b"[" + b",".join(listed) + b"]", 1)


def decode_spill(body: bytes) -> list[tuple[str, list[tuple[str, Any]]]]:
    """Decode the body of a part of a spilled outbox into entries: receivers, each with names and
    fields of messages.

    Raises ValueError for damaged compressed data and for invalid JSON.
    """
    entries: list[tuple[str, list[tuple[str, Any]]]] = parse_compressed_json(body)
    return entries


def _spill_parts(entries: list[tuple[str, list[EncodedMessage]]]) -> list[bytes]:
    """Encode an outbox as the bodies of numbered parts, in order.

    A part has about SPILL_PART_BYTES_MAX before compression, or more if the outbox would otherwise
    need more than SPILL_PARTS_MAX parts. A compressed part above SPILL_ROW_BYTES_MAX is halved,
    unless it has a single entry. Return one body for an empty outbox.
    """
    weights = [sum(len(body) + 64 for _, body in messages) for _, messages in entries]
    part_weight = max(SPILL_PART_BYTES_MAX, sum(weights) // SPILL_PARTS_MAX)
    bodies: list[bytes] = []
    start = size = 0
    for place, weight in enumerate(weights):
        if place > start and size + weight > part_weight:
            bodies += _encode_in_rows(entries[start:place])
            start, size = place, 0
        size += weight
    return bodies + _encode_in_rows(entries[start:])


def _encode_in_rows(entries: list[tuple[str, list[EncodedMessage]]]) -> list[bytes]:
    """Encode entries as a body, or as several bodies if a body would exceed SPILL_ROW_BYTES_MAX.

    A single entry is never divided, so its body may be larger.
    """
    body = encode_spill(entries)
    if len(body) <= SPILL_ROW_BYTES_MAX or len(entries) == 1:
        return [body]
    middle = len(entries) // 2
    return [*_encode_in_rows(entries[:middle]), *_encode_in_rows(entries[middle:])]
