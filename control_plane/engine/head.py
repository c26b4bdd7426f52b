"""The head row of an actor: the engine's header and the actor's state.

The header is one line of JSON, so that the state's bytes are kept and compared as they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from control_plane.adapters import lazy_adapter
from control_plane.engine.mailbox import FIRST, UNKNOWN
from control_plane.evolve import evolve

# Sorts right before the mail, so that one query reads head and mail and nothing else of the
# partition.
HEAD = "M"
PARTS = "P#"
# Receivers whose last row is remembered. A reader of mail from a sender that has forgotten it reads
# twice instead.
SENT_MAX = 16


@dataclass(frozen=True, slots=True)
class Spill:
    """An outbox too long for one commit: parts `first` to `last`, sent up to entry `offset` of
    the first.
    """

    first: int
    last: int
    offset: int = 0


@dataclass(frozen=True)
class Header:
    """The engine's own record of an actor.

    `clock` is the actor's hybrid logical clock. `sent` is the last row sent to each receiver, the
    most recent last; `forgot`: some receivers were dropped from it.
    """

    clock: int = 0
    sent: Mapping[str, str] = field(default_factory=dict)
    forgot: bool = False
    spill: Spill | None = None

    def previous_row(self, receiver: str) -> str:
        """The sort key of the row last sent to a receiver; FIRST if there was none, UNKNOWN if it
        may be forgotten.
        """
        return self.sent.get(receiver, UNKNOWN if self.forgot else FIRST)

    def with_sent_rows(self, rows: Mapping[str, str], clock: int) -> "Header":
        """The header after one row was sent to each of these receivers."""
        sent = {to: row for to, row in self.sent.items() if to not in rows} | dict(rows)
        surplus = len(sent) - SENT_MAX
        remembered = dict(list(sent.items())[surplus:]) if surplus > 0 else sent
        return evolve(self, clock=clock, sent=remembered, forgot=self.forgot or surplus > 0)


_HEADER = lazy_adapter(Header)


def encode_head(header: Header, state: bytes) -> bytes:
    """Encode a head row: the header, and the state as it is encoded already."""
    return _HEADER().dump_json(header) + b"\n" + state


def decode_head(body: bytes) -> tuple[Header, bytes]:
    """Decode a head row into its header and the encoded state; ValueError for a bad header."""
    header, _, state = body.partition(b"\n")
    return _HEADER().validate_json(header), state
