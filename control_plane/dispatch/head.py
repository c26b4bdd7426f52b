"""The head row of an actor: the engine's header and the actor's state.

The header is one line of JSON, so that the state's bytes are kept and compared as they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from control_plane.adapters import adapter
from control_plane.dispatch.mailbox import FIRST, UNKNOWN
from control_plane.evolve import evolve

# Right before the mail, so that one query reads the two and nothing else of the partition.
HEAD = "M"
PARTS = "P#"
# Receivers remembered for `previous`; to one that was forgotten, the reader makes sure by reading
# twice.
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
    """What the engine keeps of an actor. `sent`: the last row sent, by receiver, the most recent
    last.
    """

    clock: int = 0
    sent: Mapping[str, str] = field(default_factory=dict)
    forgot: bool = False
    spill: Spill | None = None

    def previous(self, receiver: str) -> str:
        """The row sent to `receiver` before."""
        return self.sent.get(receiver, UNKNOWN if self.forgot else FIRST)

    def having_sent(self, rows: Mapping[str, str], clock: int) -> "Header":
        """After sending one row to each of these receivers."""
        sent = {to: row for to, row in self.sent.items() if to not in rows} | dict(rows)
        surplus = len(sent) - SENT_MAX
        kept = dict(list(sent.items())[surplus:]) if surplus > 0 else sent
        return evolve(self, clock=clock, sent=kept, forgot=self.forgot or surplus > 0)


_HEADER = adapter(Header)


def encode_head(header: Header, state: bytes) -> bytes:
    """The head's body."""
    return _HEADER().dump_json(header) + b"\n" + state


def decode_head(body: bytes) -> tuple[Header, bytes]:
    """The way back."""
    header, _, state = body.partition(b"\n")
    return _HEADER().validate_json(header), state
