"""The backstop: mail that nobody followed and timers, found by the due index.

A row's attempts are raised before it is folded again, so that one which brings the process down
is counted; from ALONE_FROM on it is folded on its own, and after ATTEMPTS_MAX it becomes a dead
letter. A poisoned actor holds up nobody but itself: what was tried before is tried last. An attempt
that failed for the table alone is taken back; a table throttles single actors, so the pass goes on
with the next.
"""

import logging
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from control_plane.actors.step import Refused
from control_plane.dispatch.engine import ALONE_FROM, Engine
from control_plane.dispatch.head import PARTS
from control_plane.dispatch.mailbox import MAIL, TIMERS, Mail, put_attempt, read_mail
from control_plane.dispatch.reader import Torn
from control_plane.state.table import SHARDS, Conflict, Delete, Row, Unavailable

log = logging.getLogger(__name__)

ATTEMPTS_MAX = 5
# So many actors in a row that were refused: it is not they, the table does not answer.
REFUSALS_MAX = 3


@dataclass(frozen=True, slots=True)
class Driven:
    """What one pass over the index did, in rows."""

    redriven: int = 0
    dead: int = 0
    expired: int = 0


def drive(engine: Engine, shards: Iterable[int] = range(SHARDS)) -> Driven:
    """One pass: raises attempts, buries what is beyond help, advances the rest and follows.

    Raises Unavailable at its end if the table refused an actor, and at once if REFUSALS_MAX in a
    row.
    """
    now_ms = engine.clock()
    late, expired = _look(engine, shards, now_ms)
    refusals: list[Unavailable] = []
    redriven = dead = in_a_row = 0
    for address, mail in sorted(late.items(), key=_tried):
        try:
            buried = _redrive(engine, address, mail, now_ms)
        except Unavailable as error:
            log.warning("%s is not advanced now: %s", address, error)
            refusals.append(error)
            in_a_row += 1
            if in_a_row == REFUSALS_MAX:
                break
            continue
        except Exception:
            log.exception("%s cannot be advanced", address)
            continue
        in_a_row = 0
        dead += buried
        redriven += len(mail) - buried
    if refusals:
        raise refusals[-1]
    return Driven(redriven, dead, expired)


def _look(engine: Engine, shards: Iterable[int], now_ms: int) -> tuple[dict[str, list[Mail]], int]:
    """The late mail by its actors, some of whom have only parts that are due; and how many rows
    were removed at their end.
    """
    late: dict[str, list[Mail]] = {}
    expired = 0
    for key in (key for shard in shards for key in engine.table.due(shard, now_ms)):
        row = engine.table.get(key)
        if row is None or row.due_ms is None or row.due_ms > now_ms:
            continue
        if key.sort.startswith((MAIL, TIMERS)):
            _add(late.setdefault(key.partition, []), row)
        elif key.sort.startswith(PARTS):
            late.setdefault(key.partition, [])
        else:
            expired += _expire(engine, row)
    return late, expired


def _add(late: list[Mail], row: Row) -> None:
    try:
        late.append(read_mail(row))
    except (KeyError, TypeError, ValueError):
        log.exception("%s / %s is no mail", row.key.partition, row.key.sort)


def _tried(item: tuple[str, list[Mail]]) -> int:
    """How often the actor's mail was tried; it may be what brings the process down."""
    return max((mail.attempts for mail in item[1]), default=0)


def _redrive(engine: Engine, address: str, late: list[Mail], now_ms: int) -> int:
    """Counts an attempt on the actor's late mail and makes it; returns the rows buried."""
    ordered = sorted(late, key=lambda mail: mail.key.sort)
    if _tried((address, late)) >= ALONE_FROM:
        # Those behind the first may be held up by it, and innocent.
        ordered = ordered[:1]
    raised: list[Mail] = []
    try:
        dead = sum(_raise_attempts(engine, mail, now_ms, raised) for mail in ordered)
        engine.follow((address, *engine.advance(address, timers=True)))
    except Unavailable:
        _take_back(engine, raised, now_ms)
        raise
    return dead


def _raise_attempts(engine: Engine, mail: Mail, now_ms: int, raised: list[Mail]) -> bool:
    """Counts the attempt, of which `raised` gets the mail; True if the row became a dead letter
    instead.
    """
    try:
        if mail.attempts >= ATTEMPTS_MAX:
            engine.follow(engine.dead_letter(mail))
            return True
        after, write = put_attempt(mail, now_ms)
        engine.table.commit((write,))
        raised.append(after)
    except (Conflict, Torn, Refused):
        # Somebody else was first: the next pass looks again.
        return False
    return False


def _take_back(engine: Engine, raised: list[Mail], now_ms: int) -> None:
    """An attempt that the table did not allow says nothing of the mail."""
    for mail in raised:
        with suppress(Conflict, Unavailable):
            engine.table.commit((put_attempt(mail, now_ms, -1)[1],))


def _expire(engine: Engine, row: Row) -> int:
    """Rows with an end, such as idempotency keys, are removed at it."""
    try:
        engine.table.commit((Delete(row.key, row.revision),))
    except (Conflict, Unavailable):
        return 0
    return 1
