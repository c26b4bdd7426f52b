"""The head row of an actor: a header of the engine, and the state of the actor.

The header is one line of JSON. The bytes of the state follow unchanged, so that the engine can
store and compare states as bytes.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from pydantic_core import from_json

from control_plane.adapters import lazy_adapter
from control_plane.engine.mailbox import FIRST, UNKNOWN
from control_plane.evolve import evolve
from control_plane.rows import actor_rows
from control_plane.rows.stored_fields import stored_field_names
from control_plane.rows.unknown_fields import append_fields, select_unknown

# The sort key of the head sorts directly before the mail. A single query can therefore read the
# head and the mail without other rows.
HEAD = actor_rows.HEAD.sort
PARTS = actor_rows.PART.sort
# The number of receivers for which a header remembers the row that was sent last. If the sender has
# forgotten a receiver, the mailbox of that receiver is read twice.
SENT_MAX = 16


@dataclass(frozen=True, slots=True)
class Spill:
    """The position in a spilled outbox, which is an outbox too long for a single commit.

    The outbox is stored in numbered parts. A part has entries, each with a receiver and its
    messages.
    """

    first: int
    """The number of the first part that is not sent completely."""
    last: int
    """The number of the last part."""
    offset: int = 0
    """The number of entries of the first part that are sent already."""


@dataclass(frozen=True)
class Header:
    """The engine's own record of an actor, stored in front of the state."""

    clock: int = 0
    """The hybrid logical clock of the actor, in ticks (`TICKS_PER_MS`)."""
    sent: Mapping[str, str] = field(default_factory=dict)
    """The sort key of the row that was sent last to each receiver. The most recent receiver is
    last.
    """
    forgot: bool = False
    """Whether receivers were removed from `sent` because it exceeded SENT_MAX."""
    spill: Spill | None = None
    """The spilled outbox that is not sent yet, or None."""

    def previous_row(self, receiver: str) -> str:
        """Return the sort key of the mailbox row that was sent last to a receiver.

        Return FIRST if no row was sent to the receiver, and UNKNOWN if the header may have
        forgotten the receiver.
        """
        return self.sent.get(receiver, UNKNOWN if self.forgot else FIRST)

    def with_sent_rows(self, rows: Mapping[str, str], clock: int) -> "Header":
        """Return a copy with another clock and with `rows` as the last sent rows.

        The copy keeps the SENT_MAX most recent receivers. If the copy leaves out a receiver, its
        `forgot` is true.

        Args:
            rows: the sort key of the new row, by receiver. Empty changes only the clock.
            clock: the hybrid logical clock of the actor, in ticks.
        """
        sent = {to: row for to, row in self.sent.items() if to not in rows} | dict(rows)
        excess = len(sent) - SENT_MAX
        remembered = dict(list(sent.items())[excess:]) if excess > 0 else sent
        return evolve(self, clock=clock, sent=remembered, forgot=self.forgot or excess > 0)


@dataclass(frozen=True, slots=True)
class UnknownFields:
    """The fields of an actor's rows that this version does not know, as JSON without braces.

    b"" and an empty dict stand for no such fields.
    """

    header: bytes = b""
    """The fields of the header."""
    state: bytes = b""
    """The fields of the state."""
    parts: dict[str, bytes] = field(default_factory=dict)
    """The fields of each part that was read, by name. Parts without unknown fields are absent."""

    def without_parts(self, names: Collection[str]) -> "UnknownFields":
        """Return a copy without the fields of deleted parts. Return the object itself if nothing
        changes.

        Args:
            names: the names of the deleted parts.
        """
        if self.parts.keys().isdisjoint(names):
            return self
        parts = {name: text for name, text in self.parts.items() if name not in names}
        return replace(self, parts=parts)


_HEADER = lazy_adapter(Header)
_HEADER_NAMES = frozenset(stored_field_names(Header).values())


def encode_head(header: Header, state: bytes, unknown: UnknownFields | None = None) -> bytes:
    """Return the body of a head row: the header as a line of JSON, then the encoded state.

    Args:
        header: the header.
        state: the encoded state, a JSON object.
        unknown: fields of newer versions to append to both. None appends nothing.
    """
    if unknown is None:
        unknown = UnknownFields()
    line = append_fields(_HEADER().dump_json(header, by_alias=True), unknown.header)
    return line + b"\n" + append_fields(state, unknown.state)


def decode_head(body: bytes) -> tuple[Header, bytes]:
    """Decode the body of a head row into the header and the encoded state.

    Raises ValueError for an invalid header. Unknown fields of the header are ignored. The state is
    not checked, and is b"" if the body has no second line.
    """
    header, _, state = body.partition(b"\n")
    return _HEADER().validate_json(header), state


def select_unknown_header_fields(body: bytes) -> bytes:
    """Return the fields of a head row's header that this version does not know, without braces.

    Return b"" if all fields are known. Raises ValueError if the header is not JSON.

    Args:
        body: the body of the head row.
    """
    return select_unknown(from_json(body.partition(b"\n")[0]), _HEADER_NAMES)
