"""The values behind the digests of a journal, as far as they are still stored somewhere: in the
head, the parts and the rows outside, and in the journals of those who were written to.
"""

from collections.abc import Iterator
from itertools import islice

from pydantic_core import to_json

from control_plane.dispatch import journal
from control_plane.dispatch.head import HEAD, PARTS, decode_head
from control_plane.dispatch.kinds import kind_at
from control_plane.dispatch.mailbox import MAIL, MAIL_END, read_mail
from control_plane.dispatch.outputs import MAIL as TO
from control_plane.dispatch.outputs import PART, ROW, digest_of
from control_plane.state.table import Key, StateTable

# Entries of a receiver that are looked through for one message.
LOOKED_THROUGH_MAX = 5_000


def value_of(table: StateTable, address: str, piece: str, digest: str) -> bytes | None:
    """The value of an actor's piece with that digest; None if it is stored nowhere any more."""
    try:
        found = next(
            (value for value in _candidates(table, address, piece) if digest_of(value) == digest),
            None,
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        # What is stored cannot be read: so it is no help.
        return None
    return found


def _candidates(table: StateTable, address: str, piece: str) -> Iterator[bytes]:
    kind = kind_at(address)
    if piece.startswith(PART):
        name = piece.removeprefix(PART)
        row = table.get(Key(address, PARTS + name))
        if row is not None:
            yield kind.essence(name, kind.decode_part(name, row.body))
    elif piece.startswith(ROW):
        partition, _, sort = piece.removeprefix(ROW).partition("/")
        row = table.get(Key(partition, sort))
        if row is not None:
            yield row.body
    elif piece.startswith(TO):
        yield from _heard(table, address, piece.removeprefix(TO))
    elif piece in kind.names:
        row = table.get(Key(address, HEAD))
        if row is not None:
            state = kind.decode_state(decode_head(row.body)[1])
            yield kind.encode_field(piece, getattr(state, piece))


def _heard(table: StateTable, sender: str, receiver: str) -> Iterator[bytes]:
    """What `receiver` was sent by `sender`, row by row, as far as it is waiting or journaled."""
    if receiver == "*":
        return
    for row in table.query(receiver, MAIL, MAIL_END).rows:
        mail = read_mail(row)
        if mail.sender == sender:
            yield _listed(mail.messages)
    for row in islice(journal.rows_of(table, receiver), LOOKED_THROUGH_MAX):
        for said in journal.read_row(row.body)["in"]:
            if said["from"] == sender:
                yield _listed(said["messages"])


def _listed(messages: object) -> bytes:
    """Messages as the journal digests them."""
    return to_json(messages)
