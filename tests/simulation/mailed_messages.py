"""Messages as mail rows, also if the sender's commit would deliver the message directly."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from control_plane.engine import actor_types, mailbox
from control_plane.engine.actor_types import encode_message_for
from control_plane.engine.engine import Engine
from control_plane.state.table import Key

# Ticks after every message of the real senders of the same millisecond.
LATER = 1_000


@contextmanager
def everything_mailed() -> Iterator[None]:
    """Send all messages as mail in the block, also messages to trials.

    Outside the block, the commit of the sender delivers messages to trials.
    """
    every_type = actor_types.ACTOR_TYPES
    mailed = replace(every_type["trial"], takes_deliveries=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(actor_types, "ACTOR_TYPES", {**every_type, "trial": mailed})
        yield


def put_mail(engine: Engine, to: str, sender: str, *messages: object, tick: int = 0) -> Key:
    """Commit a mail row with `messages` at a tick of the clock and return the row's key.

    The row comes from a sender without memory of earlier mail.
    """
    clock = mailbox.next_clock(0, engine.clock()) + LATER + tick
    key = mailbox.mail_key(to, clock, sender)
    encoded = [encode_message_for(to, message) for message in messages]
    put = mailbox.mail_write(key, sender, mailbox.UNKNOWN, clock, encoded, engine.clock())
    engine.table.commit((put,))
    return key
