"""Helpers that write overdue mail for the tests of due rows."""

from dataclasses import replace

from control_plane.actors.messages.pool import SlotsRequested
from control_plane.engine import mailbox
from control_plane.engine.actor_types import encode_message_for
from control_plane.engine.engine import Engine

NOW_MS = 1_700_000_000_000


def attempts(engine: Engine, pool: str) -> list[int]:
    """Return the number of attempts of each row in the pool's mailbox."""
    rows = engine.table.query(pool, mailbox.MAIL, mailbox.MAIL_END).rows
    return [mailbox.read_mail(row).attempts for row in rows]


def mail_for(
    engine: Engine, pool: str, number: int, attempts: int = 0, due_ms: int = NOW_MS
) -> None:
    """Mail a request for slots with this number of earlier attempts."""
    key = mailbox.mail_key(pool, number, f"trial#{number}")
    encoded = [encode_message_for(pool, SlotsRequested(number, 1, 1, f"{number:06d}"))]
    put = mailbox.mail_write(key, f"trial#{number}", mailbox.UNKNOWN, number, encoded, due_ms)
    body = put.body.replace(b'"attempts":0', b'"attempts":%d' % attempts)
    engine.table.commit((replace(put, body=body),))
