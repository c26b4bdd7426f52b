"""The due index: finding the rows that are due, and postponing rows.

A host whose clock was ahead has written rows that are due too late. Other rows are due at most
DUE_MS_MAX from now. Each pass searches one shard for later rows, folds their mail, and restarts
their timers.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from control_plane.clock_skew import SKEW_MS_MAX
from control_plane.engine.engine import Engine
from control_plane.engine.head import PARTS
from control_plane.engine.mailbox import (
    DUE_MS_MAX,
    MAIL,
    TICKS_PER_MS,
    TIMERS,
    MailboxRow,
    postponement,
    read_mail,
    restarted_timer,
    timer_continuation,
    timer_due_ms,
)
from control_plane.engine.row_expiry import delete_expired
from control_plane.rows import webhook_rows
from control_plane.state.table import (
    GET_MAX,
    OPERATIONS_MAX,
    Conflict,
    InvalidCommit,
    Key,
    Put,
    Row,
    Unavailable,
)

# The delay before held timers are due again: about the time until the next pass.
HELD_MS = 55_000
# The number of keys of a shard that are read together.
PAGE_KEYS = GET_MAX
EVENTS = webhook_rows.EVENT.partition
_END_OF_TIME_MS = 1 << 52
HoldsTimers = Callable[[str], bool]
"""Returns whether the timers of the actor at an address must wait."""


def holds_nothing(address: str) -> bool:
    """Return False: the timers of no actor must wait."""
    return False


@dataclass(frozen=True, slots=True)
class DuePage:
    """The due rows of a read of the index."""

    late: dict[str, list[MailboxRow]]
    """The mail and timers whose due time has passed, by actor, the earliest first. An actor that is
    due because of a spilled outbox (stored messages that no process has mailed) may have no mail.
    """
    full_shards: list[int]
    """The shards that may have more due rows."""
    expired: int
    """The number of expired rows that were deleted."""
    put_off: int
    """The number of rows that are no longer due: deleted rows, and timers that were not due yet.
    Held timers are not counted.
    """
    events: tuple[str, ...] = ()
    """The partitions of due events, which webhooks are to deliver."""


def find_due(
    engine: Engine, shards: Iterable[int], holds_timers: HoldsTimers = holds_nothing
) -> DuePage:
    """Read at most PAGE_KEYS due rows of each shard and group the mail and timers by actor.

    These rows are not in the mail of the result:
    - Due events of webhooks are postponed by HELD_MS, and the result has their partitions. The
      caller delivers the events.
    - Due rows that are neither mail nor timers nor parts nor events are deleted. With an expired
      journal row, all earlier rows of the same journal are deleted.
    - Timers of actors for whose address `holds_timers` returns True are postponed by HELD_MS.
    - Timers before their due time are postponed to that time, or to DUE_MS_MAX from now.

    A due part belongs to a spilled outbox (stored messages that no process has mailed): its actor
    is in the result, possibly without mail.

    Raises Unavailable if the index or the rows cannot be read, or if a deletion or the postponement
    of an early timer fails.
    """
    now_ms = engine.clock()
    due: list[Row] = []
    full_shards: list[int] = []
    expired = 0
    for shard in shards_with_due_rows(engine, shards):
        keys = engine.table.due_keys(shard, now_ms, limit=PAGE_KEYS)
        if len(keys) == PAGE_KEYS:
            full_shards.append(shard)
        work = [key for key in keys if _is_retried(key)]
        if len(work) < len(keys):
            expired += delete_expired(engine, [key for key in keys if key not in work])
        for row in engine.table.get_many(work) if work else ():
            if row is not None and row.due_ms is not None and row.due_ms <= now_ms:
                due.append(row)
    held, waiting, late, events = list[Row](), list[Row](), list[Row](), list[Row]()
    for row in due:
        if row.key.partition.startswith(EVENTS):
            events.append(row)
        elif _is_timer(row) and holds_timers(row.key.partition):
            held.append(row)
        else:
            (waiting if _is_waiting_timer(row, now_ms) else late).append(row)
    postpone(engine, [read_mail(row) for row in held], now_ms + HELD_MS)
    _postpone_events(engine, events, now_ms + HELD_MS)
    put_off = expired + len(events)
    put_off += sum(_put_off_timer(engine, row, now_ms) for row in waiting)
    partitions = tuple(dict.fromkeys(row.key.partition for row in events))
    return DuePage(_overdue_mail(late), full_shards, expired, put_off, partitions)


def shards_with_due_rows(engine: Engine, shards: Iterable[int]) -> tuple[int, ...]:
    """Return the shards that may have due rows now, in order. Return a single shard without asking.

    Raises Unavailable if the table does not answer.
    """
    asked = tuple(shards)
    return engine.table.due_shards(asked, engine.clock()) if len(asked) > 1 else asked


def find_future(engine: Engine, shard: int) -> dict[str, list[MailboxRow]]:
    """Find the rows of hosts with clocks that were ahead, in a shard. Read at most PAGE_KEYS rows.

    These rows are due later than any correct clock would set. Return the mail by actor. An actor
    with a spilled outbox (stored messages that no process has mailed) may have no mail. Timers are
    restarted: rewritten with their delay counted from now. Events of webhooks become due now.
    Neither timers nor events are in the result.

    Raises Unavailable if the index or the rows cannot be read, or a timer cannot be written.
    """
    now_ms = engine.clock()
    after_ms = now_ms + DUE_MS_MAX + SKEW_MS_MAX
    keys = engine.table.due_keys(shard, _END_OF_TIME_MS, after_ms=after_ms, limit=PAGE_KEYS)
    work = [key for key in keys if _is_retried(key)]
    rows = [row for row in (engine.table.get_many(work) if work else ()) if row is not None]
    future = [row for row in rows if row.due_ms is not None and row.due_ms > after_ms]
    events = [row for row in future if row.key.partition.startswith(EVENTS)]
    _postpone_events(engine, events, now_ms)
    future = [row for row in future if row not in events]
    for row in filter(_is_timer, future):
        _put_off_timer(engine, row, now_ms, from_now=True)
    return _overdue_mail(row for row in future if not _is_timer(row))


def waiting_time_ms(late: Iterable[Iterable[MailboxRow]], now_ms: int) -> int:
    """Return the longest time that a message without attempts has waited, at least 0.

    Timers do not count, because they wait on purpose.

    Args:
        late: overdue mail and timers of actors.
        now_ms: the time in epoch ms.
    """
    sent_ms = [
        mail.clock // TICKS_PER_MS
        for actor_mail in late
        for mail in actor_mail
        if not mail.attempts and mail.key.sort.startswith(MAIL)
    ]
    return max(0, now_ms - min(sent_ms, default=now_ms))


def postpone(engine: Engine, rows: Sequence[MailboxRow], due_ms: int) -> None:
    """Commit another due time for mail, so that other rows fit into the next page.

    The commits have at most OPERATIONS_MAX rows each. If a row of a commit has changed, or the
    table fails, the rows of this commit stay due. No error is raised.
    """
    for start in range(0, len(rows), OPERATIONS_MAX):
        writes = [postponement(mail, due_ms) for mail in rows[start : start + OPERATIONS_MAX]]
        with suppress(Conflict, Unavailable, InvalidCommit):
            engine.table.commit(writes)


def _overdue_mail(rows: Iterable[Row]) -> dict[str, list[MailboxRow]]:
    """Group rows by actor and decode the mail and timers, the earliest due time first.

    Rows of a spilled outbox (stored messages that no process has mailed) only add their actor, with
    an empty list if the actor has no mail. An undecodable row is logged, and becomes mail that no
    attempt can fold.
    """
    late: dict[str, list[MailboxRow]] = {}
    for row in sorted(rows, key=lambda row: row.due_ms or 0):
        actor_mail = late.setdefault(row.key.partition, [])
        if not row.key.sort.startswith(PARTS):
            actor_mail.append(read_mail(row))
    return late


def _is_waiting_timer(row: Row, now_ms: int) -> bool:
    """Return whether a row is a timer with a due time after `now_ms`. Return False for mail and
    parts.
    """
    return (timer_due_ms(row.key) or 0) > now_ms


def _put_off_timer(engine: Engine, row: Row, now_ms: int, *, from_now: bool = False) -> bool:
    """Commit a later time in the due index for a timer that is not due yet; return True.

    The new time is the timer's due time, but at most DUE_MS_MAX from now. Return False, without a
    change, if another process changed the timer first. Raises Unavailable.

    Args:
        from_now: restart a timer from a host whose clock was ahead: the timer's original delay
            counts from now, in a new row that replaces `row`.
    """
    timer, due_ms = read_mail(row), timer_due_ms(row.key) or 0
    continuation = (timer_continuation(timer, due_ms, now_ms),)
    with suppress(Conflict):
        writes = restarted_timer(timer, due_ms, now_ms) if from_now else continuation
        engine.table.commit(writes)
        return True
    return False


def _postpone_events(engine: Engine, rows: Sequence[Row], due_ms: int) -> None:
    """Commit another due time for events of webhooks. No error is raised.

    An event that another process has changed keeps its due time, and so does every event if the
    table fails.
    """
    for row in rows:
        with suppress(Conflict, Unavailable):
            engine.table.commit((Put(row.key, row.revision + 1, row.body, row.revision, due_ms),))


def _is_retried(key: Key) -> bool:
    """Return whether a due row with this key is retried. Other due rows have expired."""
    return key.sort.startswith((MAIL, TIMERS, PARTS)) or key.partition.startswith(EVENTS)


def _is_timer(row: Row) -> bool:
    """Return whether the row is a timer, by the sort key."""
    return row.key.sort.startswith(TIMERS)
