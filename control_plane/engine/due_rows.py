"""Due rows: overdue mail and timers are redriven, expired rows are deleted.

Mail is normally folded right after the commit that sent it. Mail that was not is due in the table's
index a few seconds later and found here (the "backstop").

A row's attempts are counted before it is folded again, so that one that crashes the process is
counted too. From ISOLATE_FROM_ATTEMPTS on it is folded on its own, and after ATTEMPTS_MAX it
becomes a dead letter. A poisoned actor delays no other: rows that were tried before are tried last.
An attempt that failed only because the table did not answer is withdrawn. A table throttles single
actors, so the pass goes on with the next one.
"""

import logging
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from control_plane.actors.step import CommandRefused
from control_plane.engine.engine import Engine
from control_plane.engine.head import PARTS
from control_plane.engine.mailbox import (
    ATTEMPTS_MAX,
    ISOLATE_FROM_ATTEMPTS,
    MAIL,
    TIMERS,
    Mail,
    attempt_write,
    read_mail,
)
from control_plane.engine.reader import TornRead
from control_plane.state.table import SHARDS, Conflict, Delete, Row, Unavailable

log = logging.getLogger(__name__)

# When the table was unavailable for so many actors in a row, it does not answer at all.
CONSECUTIVE_FAILURES_MAX = 3


@dataclass(frozen=True, slots=True)
class DueRowCounts:
    """Rows that one pass redrove, made dead letters, and deleted because they expired."""

    redriven: int = 0
    dead: int = 0
    expired: int = 0


def process_due_rows(engine: Engine, shards: Iterable[int] = range(SHARDS)) -> DueRowCounts:
    """Make one pass over the due index: count attempts, make dead letters of mail that failed too
    often, and advance the other actors and whom they write to.

    Raises Unavailable at its end if the table was unavailable for any actor, and at once if it was
    for CONSECUTIVE_FAILURES_MAX in a row.
    """
    now_ms = engine.clock()
    late, expired = _find_due(engine, shards, now_ms)
    failures: list[Unavailable] = []
    redriven = dead = in_a_row = 0
    for address, mail in sorted(late.items(), key=_most_attempts):
        try:
            dead_letters = _redrive(engine, address, mail, now_ms)
        except Unavailable as error:
            log.warning("%s is not advanced now: %s", address, error)
            failures.append(error)
            in_a_row += 1
            if in_a_row == CONSECUTIVE_FAILURES_MAX:
                break
            continue
        except Exception:
            log.exception("%s cannot be advanced", address)
            continue
        in_a_row = 0
        dead += dead_letters
        redriven += len(mail) - dead_letters
    if failures:
        raise failures[-1]
    return DueRowCounts(redriven, dead, expired)


def _find_due(
    engine: Engine, shards: Iterable[int], now_ms: int
) -> tuple[dict[str, list[Mail]], int]:
    """Find the late mail by actor (an actor with only a due part has none), and delete expired
    rows; returns the mail and how many rows expired.
    """
    late: dict[str, list[Mail]] = {}
    expired = 0
    for key in (key for shard in shards for key in engine.table.due_keys(shard, now_ms)):
        row = engine.table.get(key)
        if row is None or row.due_ms is None or row.due_ms > now_ms:
            continue
        if key.sort.startswith((MAIL, TIMERS)):
            late.setdefault(key.partition, []).append(read_mail(row))
        elif key.sort.startswith(PARTS):
            late.setdefault(key.partition, [])
        else:
            expired += _delete_expired_row(engine, row)
    return late, expired


def _most_attempts(item: tuple[str, list[Mail]]) -> int:
    """The most attempts that any of an actor's late mail has had."""
    return max((mail.attempts for mail in item[1]), default=0)


def _redrive(engine: Engine, address: str, late: list[Mail], now_ms: int) -> int:
    """Attempt the actor's late mail once more; returns how many rows became dead letters."""
    ordered = sorted(late, key=lambda mail: mail.key.sort)
    if _most_attempts((address, late)) >= ISOLATE_FROM_ATTEMPTS:
        # The first row may be the poisoned one, and those behind it only wait for it.
        ordered = ordered[:1]
    attempted: list[Mail] = []
    try:
        dead = sum(_count_attempt(engine, mail, now_ms, attempted) for mail in ordered)
        engine.advance_until_idle((address, *engine.advance(address, timers=True)))
    except Unavailable:
        _withdraw_attempts(engine, attempted, now_ms)
        raise
    return dead


def _count_attempt(engine: Engine, mail: Mail, now_ms: int, attempted: list[Mail]) -> bool:
    """Count an attempt in the row and add it to `attempted`, or make it a dead letter if it has had
    too many; True for a dead letter.
    """
    try:
        if mail.attempts >= ATTEMPTS_MAX:
            engine.advance_until_idle(engine.dead_letter_mail(mail))
            return True
        counted, write = attempt_write(mail, now_ms)
        engine.table.commit((write,))
        attempted.append(counted)
    except (Conflict, TornRead, CommandRefused):
        # Another process was first: the next pass looks again.
        return False
    return False


def _withdraw_attempts(engine: Engine, attempted: list[Mail], now_ms: int) -> None:
    """Uncount attempts that failed because of the table, which says nothing about the mail."""
    for mail in attempted:
        with suppress(Conflict, Unavailable):
            engine.table.commit((attempt_write(mail, now_ms, -1)[1],))


def _delete_expired_row(engine: Engine, row: Row) -> int:
    """Delete a row whose time is over, such as an idempotency key; returns the rows deleted."""
    try:
        engine.table.commit((Delete(row.key, row.revision),))
    except (Conflict, Unavailable):
        return 0
    return 1
