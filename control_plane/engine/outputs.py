"""The outputs of a commit: the changed values, each encoded without defaults.

The journal stores a digest of each output, and replays compare the digests. Adding a field with a
default changes no digest. The names of outputs:
- the field's stored name, for a field of the state;
- `P:` and the part's name, for a part, which is a named row of the actor's larger state;
- `R:` and the key, for a row outside the actor;
- `M:` and the address, for the messages to a receiver;
- `T`, for all timers.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING
from hashlib import sha256
from typing import Any

from control_plane.actors.step import SetTimer
from control_plane.engine.actor_types import ActorType, EncodedMessage
from control_plane.rows import actor_rows
from control_plane.state.table import Key

OUTBOX = actor_rows.OUTBOX.sort.removeprefix(actor_rows.PART.sort)
"""The start of the names of parts with a spilled outbox."""
# The maximum number of receivers with separate outputs. Messages to more receivers are a single
# output, because many digests would fill the journal row.
RECEIVERS_MAX = 48
# The output of a deleted part or row.
DELETED = b"-"

PART, ROW, MAIL, TIMERS = "P:", "R:", "M:", "T"
_LABELS = {PART: "part ", ROW: "row ", MAIL: "messages to "}


def is_outbox_part(name: str) -> bool:
    """Return whether a part belongs to a spilled outbox, by the part's name, which then begins with
    OUTBOX.

    A part is a named row of an actor's larger state. The parts of a spilled outbox have the
    messages of a commit that was full. They are read only once, so they are not cached.
    """
    return name.startswith(OUTBOX)


def output_digest(output: bytes) -> str:
    """Return the digest of an output: the first eight hexadecimal digits of the SHA-256."""
    return sha256(output).hexdigest()[:8]


def field_outputs(actor_type: ActorType, before: Any, after: Any) -> Iterator[tuple[str, bytes]]:
    """Yield the stored name and the encoding of each state field with a changed encoding.

    For a new actor (`before` is None), the fields are compared with their defaults. Fields without
    a default are then always yielded. Encodings are without defaults (`ActorType.encode_field`).

    Args:
        before: the state before the fold, or None.
        after: the state after the fold, which is not None.
    """
    previous_values = actor_type.field_defaults if before is None else before.__dict__
    for name, value in after.__dict__.items():
        previous = previous_values.get(name, MISSING)
        if previous is value:
            continue
        encoded = actor_type.encode_field(name, value)
        if previous is MISSING or encoded != actor_type.encode_field(name, previous):
            yield actor_type.stored_names[name], encoded


def part_outputs(
    actor_type: ActorType, parts: Mapping[str, object | None]
) -> Iterator[tuple[str, bytes]]:
    """Yield `P:` with the name, and the encoding without defaults, of each changed part.

    The encoding of a deleted part is DELETED. The parts of a spilled outbox (messages that a full
    commit did not mail) are left out, because their messages are outputs already.

    Args:
        parts: the changed parts by name. None deletes the part.
    """
    for name, value in parts.items():
        if not name.startswith(OUTBOX):
            yield (
                PART + name,
                DELETED if value is None else actor_type.encode_part_without_defaults(name, value),
            )


def row_outputs(rows: Mapping[Key, bytes | None]) -> Iterator[tuple[str, bytes]]:
    """Yield `R:PARTITION/SORT` and the body of each changed row outside the actor.

    The body of a deleted row is DELETED.

    Args:
        rows: the new body of each changed row. None deletes the row.
    """
    for key, body in rows.items():
        yield f"{ROW}{key.partition}/{key.sort}", DELETED if body is None else body


def mail_outputs(sends: Mapping[str, Sequence[EncodedMessage]]) -> Iterator[tuple[str, bytes]]:
    """Yield `M:` with the address, and the encoded messages, of each receiver, in the order of
    `sends`.

    For more than RECEIVERS_MAX receivers, yield all messages as a single output named `M:*`. Yield
    nothing without messages.
    """
    encoded = {
        to: b",".join(b'["%s",%s]' % (name.encode(), body) for name, body in messages)
        for to, messages in sends.items()
    }
    if len(encoded) > RECEIVERS_MAX:
        yield f"{MAIL}*", b",".join(b'["%s",%s]' % (to.encode(), m) for to, m in encoded.items())
        return
    for to, content in encoded.items():
        yield MAIL + to, b"[%s]" % content


def timer_outputs(actor_type: ActorType, timers: Sequence[SetTimer]) -> Iterator[tuple[str, bytes]]:
    """Yield all timers that were set, in order, as a single output named `T`.

    Yield nothing without timers. Raises KeyError for a message that the actor does not accept.
    """
    if timers:
        encoded = (
            b'[%d,"%s",%s]' % (timer.due_ms, name.encode(), body)
            for timer in timers
            for name, body in (actor_type.encode_message(timer.message),)
        )
        yield TIMERS, b"[%s]" % b",".join(encoded)


def display_name(output: str) -> str:
    """Return an output's name for users: `status`, `part trials/0`, `row PARTITION/SORT`, `messages
    to trial#7`.

    An output is a changed value of a commit, such as a field of the state. All timers are `timers`,
    and the messages to many receivers are `messages`. The name of a field is returned unchanged.
    """
    if output == TIMERS:
        return "timers"
    if output == f"{MAIL}*":
        return "messages"
    return _LABELS[output[:2]] + output[2:] if output[:2] in _LABELS else output


def output_rank(output: str) -> int:
    """Return the sort rank of an output: 0 for state fields, then 1 for parts, 2 rows, 3 messages,
    4 timers.

    Args:
        output: the name of the output.
    """
    families = (PART, ROW, MAIL)
    if output == TIMERS:
        return len(families) + 1
    return families.index(output[:2]) + 1 if output[:2] in families else 0
