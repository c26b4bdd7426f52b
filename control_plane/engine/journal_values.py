"""Lookup of the values behind the digests of a journal.

A value is found if it is still stored: in the actor's head and parts, in rows outside the actor, or
in the mailboxes and journals of the receivers.
"""

from collections.abc import Iterator
from itertools import islice

from pydantic_core import to_json

from control_plane.engine import journal
from control_plane.engine.actor_types import actor_type_at
from control_plane.engine.head import HEAD, PARTS, decode_head
from control_plane.engine.mailbox import MAIL, MAIL_END, read_mail
from control_plane.engine.outputs import MAIL as MESSAGES
from control_plane.engine.outputs import PART, ROW, output_digest
from control_plane.state.row_ranges import read_rows
from control_plane.state.table import Key, StateTable

# The number of entries of a receiver's journal that are searched for a message.
ENTRIES_SEARCHED_MAX = 5_000


def find_value(table: StateTable, address: str, output: str, digest: str) -> bytes | None:
    """Return the stored value of an actor's output with this digest.

    Return None if the value is no longer stored or cannot be read. Raises TableError.

    Args:
        output: the output's name (outputs.py).
        digest: the digest that the journal recorded.
    """
    candidates = _candidate_values(table, address, output)
    try:
        return next((value for value in candidates if output_digest(value) == digest), None)
    except (AttributeError, KeyError, TypeError, ValueError):
        # An unreadable stored value counts as missing.
        return None


def _candidate_values(table: StateTable, address: str, output: str) -> Iterator[bytes]:
    """Yield the encoded values that are stored for an output now.

    Yield nothing for timers, and for a part, row or head that does not exist. Raises TableError,
    and KeyError, TypeError or ValueError for a stored value that cannot be decoded.
    """
    actor_type = actor_type_at(address)
    if output.startswith(PART):
        name = output.removeprefix(PART)
        row = table.get(Key(address, PARTS + name))
        if row is not None:
            yield actor_type.encode_part_without_defaults(
                name, actor_type.decode_part(name, row.body)
            )
    elif output.startswith(ROW):
        partition, _, sort = output.removeprefix(ROW).partition("/")
        row = table.get(Key(partition, sort))
        if row is not None:
            yield row.body
    elif output.startswith(MESSAGES):
        yield from _messages_between(table, address, output.removeprefix(MESSAGES))
    elif (field := actor_type.names_in_code.get(output)) is not None:
        row = table.get(Key(address, HEAD))
        if row is not None:
            state = actor_type.decode_state(decode_head(row.body)[1])
            yield actor_type.encode_field(field, getattr(state, field))


def _messages_between(table: StateTable, sender: str, receiver: str) -> Iterator[bytes]:
    """Yield the encoded messages from `sender` to `receiver`, a value for each row of mail.

    The mailbox comes first, then the mail in the first ENTRIES_SEARCHED_MAX entries of the
    receiver's journal. Yield nothing for the receiver "*", which stands for many receivers. Raises
    TableError, and KeyError, TypeError or ValueError for a journal row that cannot be decoded.
    """
    if receiver == "*":
        return
    for mail in map(read_mail, read_rows(table, receiver, MAIL, MAIL_END)):
        if mail.sender == sender:
            yield _encode_messages(mail.messages)
    for row in islice(journal.read_entry_rows(table, receiver), ENTRIES_SEARCHED_MAX):
        for mail_fields in journal.decode_journal_row(row.body)["in"]:
            if mail_fields["from"] == sender:
                yield _encode_messages(mail_fields["messages"])


def _encode_messages(messages: object) -> bytes:
    """Encode the messages of a mailbox row as JSON, as the digests of the journal do."""
    return to_json(messages)
