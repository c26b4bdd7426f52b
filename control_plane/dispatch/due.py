"""The backstop: mail that nobody followed and timers, found by the due index.

A row's attempts are raised before it is folded again, so that one which brings the process down
is counted; from ALONE_FROM on it is folded on its own, and after ATTEMPTS_MAX it becomes a dead
letter. A poisoned actor holds up nobody but itself.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from control_plane.actors.step import Refused
from control_plane.dispatch.engine import Engine
from control_plane.dispatch.mailbox import MAIL, TIMERS, put_attempt, read_mail
from control_plane.dispatch.reader import Torn
from control_plane.state.table import SHARDS, Conflict, Delete, Expect, Key, Unavailable

ATTEMPTS_MAX = 5


@dataclass(frozen=True, slots=True)
class Driven:
    """What one pass over the index did, in rows."""

    redriven: int = 0
    dead: int = 0
    expired: int = 0


def drive(engine: Engine, shards: Iterable[int] = range(SHARDS)) -> Driven:
    """One pass: raises attempts, buries what is beyond help, advances the rest and follows."""
    now_ms = engine.clock()
    actors: dict[str, None] = {}
    redriven = dead = expired = 0
    for shard in shards:
        for key in engine.table.due(shard, now_ms):
            if not key.sort.startswith((MAIL, TIMERS)):
                expired += _expire(engine, key)
            elif _raise_attempts(engine, key, now_ms, actors):
                redriven += 1
            else:
                dead += 1
    for address in actors:
        engine.follow((address, *engine.advance(address, timers=True)))
    return Driven(redriven, dead, expired)


def _raise_attempts(engine: Engine, key: Key, now_ms: int, actors: dict[str, None]) -> bool:
    """Counts the attempt and notes the actor; False if the row became a dead letter instead."""
    row = engine.table.get(key)
    if row is None or row.due_ms is None or row.due_ms > now_ms:
        return True
    mail = read_mail(row)
    if mail.attempts >= ATTEMPTS_MAX:
        try:
            actors.update(dict.fromkeys(engine.dead_letter(mail)))
        except (Conflict, Torn, Refused):
            return True
        return False
    _, write = put_attempt(mail, now_ms)
    try:
        engine.table.commit((write,))
    except (Conflict, Unavailable):
        return True
    actors[key.partition] = None
    return True


def _expire(engine: Engine, key: Key) -> int:
    """Rows with an end, such as idempotency keys, are removed at it."""
    try:
        engine.table.commit((Delete(key, Expect.PRESENT),))
    except (Conflict, Unavailable):
        return 0
    return 1
