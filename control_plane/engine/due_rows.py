"""Due rows: overdue mail and timers are redriven, expired rows are deleted.

Mail is normally folded right after the commit that sent it. Mail that was not is due in the table's
index a few seconds later and found here (the recovery pass). Rows that only expire are in shards of
their own, so that they never stand between a pass and its work.

A row's attempts are counted before it is folded again, so that one that crashes the process is
counted too. From ISOLATE_FROM_ATTEMPTS on it is folded on its own, and after ATTEMPTS_MAX its first
message becomes a dead letter. A fold begins with the first row of the mailbox, due or not: that one
is counted then, so that no row is blamed for another. A poisoned actor delays no other: rows that
were tried before are tried last, and those that only wait for one are due when that one is. An
attempt that failed only because the table did not answer is withdrawn. A table throttles single
actors, so the pass goes on with the next one.

A host whose clock was ahead has written rows that are due when its time comes. No other row is due
later than DUE_MS_MAX from now, so that these are found too: their mail is folded at once, and their
timers wait from now on. Each pass looks for them in one of the shards.

What is due first comes first. While others wait, an actor has a part of a pass, however much mail
or outbox it has; what is left of the time is divided among those that need more.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from control_plane.actors.step import CommandRefused
from control_plane.clock_skew import SKEW_MS_MAX
from control_plane.engine.engine import Engine
from control_plane.engine.head import PARTS
from control_plane.engine.journal import JOURNAL
from control_plane.engine.mailbox import (
    ATTEMPTS_MAX,
    DUE_MS_MAX,
    ISOLATE_FROM_ATTEMPTS,
    MAIL,
    MAIL_END,
    RECOVERY_DELAY_MS,
    TIMERS,
    MailboxRow,
    attempt_delay_ms,
    attempt_write,
    postponement,
    read_mail,
    restarted_timer,
    timer_continuation,
    timer_due_ms,
)
from control_plane.engine.reader import TornRead
from control_plane.state.table import (
    EXPIRY_SHARDS,
    GET_MAX,
    OPERATIONS_MAX,
    WORK_SHARDS,
    Conflict,
    Delete,
    Expect,
    InvalidCommit,
    Key,
    Row,
    Unavailable,
)

log = logging.getLogger(__name__)

# When the table was unavailable for so many actors in a row, it does not answer at all.
CONSECUTIVE_FAILURES_MAX = 3
# Rows of an actor that could not be advanced are due again so much later.
POSTPONED_MS = 30_000
# Timers that are held are due again so much later, at about the next pass.
HELD_MS = 55_000
# Keys of a shard that are read at once, with their rows.
PAGE_KEYS = GET_MAX
BUDGET_MS = 20_000
_END_OF_TIME_MS = 1 << 52
MINUTE_MS = 60_000
# So many actors that never come to an end have a turn in each pass.
TURNS_MIN = 8


HoldsTimers = Callable[[str], bool]
"""Tells whether an actor's timers have to wait."""


def _holds_nothing(address: str) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class DueRowCounts:
    """Rows that one pass redrove, made dead letters, and deleted because they expired."""

    redriven: int = 0
    dead: int = 0
    expired: int = 0


def process_due_rows(
    engine: Engine,
    shards: Iterable[int] = WORK_SHARDS,
    expiry_shards: Iterable[int] = EXPIRY_SHARDS,
    *,
    budget_ms: int = BUDGET_MS,
    holds_timers: HoldsTimers | None = None,
) -> DueRowCounts:
    """Make one pass over the due index: count attempts, make dead letters of messages that failed
    too often, and advance the other actors and whom they write to, until nothing is due or no time
    is left. What expired is deleted last. Timers of actors that `holds_timers` names are due again
    after HELD_MS.

    Raises Unavailable at its end if the table was unavailable for any actor, and at once if it was
    for CONSECUTIVE_FAILURES_MAX in a row.
    """
    until = engine.seconds() + budget_ms / 1000
    redrive = _Redrive(engine, until, budget_ms // TURNS_MIN, holds_timers or _holds_nothing)
    left: list[int] = list(shards)
    if left:
        minute = engine.clock() // MINUTE_MS
        redrive.run_page(_find_future(engine, left[minute % len(left)]))
    while left and redrive.has_time():
        page = _find_due(engine, left, redrive.holds_timers)
        left = page.full_shards
        redrive.expired += page.expired
        if not redrive.run_page(page.late) and not page.put_off:
            break
    redrive.run_unfinished()
    if redrive.failures:
        raise redrive.failures[-1]
    expired = _delete_expired_rows(engine, expiry_shards, until)
    return DueRowCounts(redrive.redriven, redrive.dead, redrive.expired + expired)


def _delete_expired_rows(engine: Engine, shards: Iterable[int], until: float) -> int:
    """Delete rows whose time is over, such as idempotency keys, until there are none or no time is
    left; returns how many were deleted. Raises Unavailable.
    """
    deleted = 0
    for shard in _shards_with_due_rows(engine, shards):
        while engine.seconds() < until:
            keys = engine.table.due_keys(shard, engine.clock(), limit=PAGE_KEYS)
            count = _delete_expired(engine, keys)
            deleted += count
            # The index may lag behind: what it still shows is found by the next pass.
            if not count:
                break
    return deleted


class _Redrive:
    """One pass over the work that is due: its time, its counts and what the table refused."""

    def __init__(
        self, engine: Engine, until: float, turn_ms: int, holds_timers: HoldsTimers
    ) -> None:
        self.holds_timers = holds_timers
        self._engine = engine
        self._until = until
        self._turn_ms = turn_ms
        self._unfinished: deque[str] = deque()
        self._seen: set[str] = set()
        self._in_a_row = 0
        self.redriven = 0
        self.dead = 0
        self.expired = 0
        self.failures: list[Unavailable] = []

    def has_time(self) -> bool:
        """Whether time is left, and the table seems to answer."""
        return self._in_a_row < CONSECUTIVE_FAILURES_MAX and self._left_ms() > 0

    def run_page(self, late: Mapping[str, list[MailboxRow]]) -> bool:
        """Advance the actors of a page, each at most once in a pass; returns whether any was."""
        fresh = {address: mail for address, mail in late.items() if address not in self._seen}
        self._seen.update(fresh)
        for address, mail in sorted(fresh.items(), key=_most_attempts):
            if not self.has_time():
                return False
            self._run_actor(address, mail)
        return bool(fresh)

    def run_unfinished(self) -> None:
        """Give the time that is left, in turn, to the actors that used up theirs."""
        while self._unfinished and self.has_time():
            self._run_actor(self._unfinished.popleft(), [])

    def _run_actor(self, address: str, mail: list[MailboxRow]) -> None:
        now_ms = self._engine.clock()
        turn_ms = min(self._turn_ms, self._left_ms())
        until = self._engine.seconds() + turn_ms / 1000
        try:
            dead_letters = _redrive_actor(
                self._engine, address, mail, now_ms, turn_ms, self.holds_timers
            )
        except Unavailable as error:
            log.warning("%s is not advanced now: %s", address, error)
            self.failures.append(error)
            self._in_a_row += 1
            return
        except Exception:
            log.exception("%s cannot be advanced", address)
            _postpone(self._engine, mail, now_ms + POSTPONED_MS)
            return
        if self._engine.seconds() >= until:
            self._unfinished.append(address)
        self._in_a_row = 0
        self.dead += dead_letters
        self.redriven += len(mail) - dead_letters

    def _left_ms(self) -> int:
        return int((self._until - self._engine.seconds()) * 1000)


@dataclass(frozen=True, slots=True)
class _DuePage:
    """The result of a look at the index: late mail by actor, that due first ahead (an actor with
    only a due part has none), and the shards that may have more. `put_off`: how many rows were
    deleted since they `expired`, or wait on.
    """

    late: dict[str, list[MailboxRow]]
    full_shards: list[int]
    expired: int
    put_off: int


def _find_due(
    engine: Engine, shards: Iterable[int], holds_timers: HoldsTimers = _holds_nothing
) -> _DuePage:
    """Find what is due. Rows that expire and were written before they had shards of their own are
    deleted.
    """
    now_ms = engine.clock()
    due: list[Row] = []
    full_shards: list[int] = []
    expired = 0
    for shard in _shards_with_due_rows(engine, shards):
        keys = engine.table.due_keys(shard, now_ms, limit=PAGE_KEYS)
        if len(keys) == PAGE_KEYS:
            full_shards.append(shard)
        work = [key for key in keys if key.sort.startswith((MAIL, TIMERS, PARTS))]
        if len(work) < len(keys):
            expired += _delete_expired(engine, [key for key in keys if key not in work])
        for row in engine.table.get_many(work) if work else ():
            if row is not None and row.due_ms is not None and row.due_ms <= now_ms:
                due.append(row)
    held, waiting, late = list[Row](), list[Row](), list[Row]()
    for row in due:
        if _is_timer(row) and holds_timers(row.key.partition):
            held.append(row)
        else:
            (waiting if _is_waiting_timer(row, now_ms) else late).append(row)
    _postpone(engine, [read_mail(row) for row in held], now_ms + HELD_MS)
    put_off = expired + sum(_put_off_timer(engine, row, now_ms) for row in waiting)
    return _DuePage(_overdue_mail(late), full_shards, expired, put_off)


def _shards_with_due_rows(engine: Engine, shards: Iterable[int]) -> tuple[int, ...]:
    """The shards that have something due: most passes find none, and are not to pay for each."""
    asked = tuple(shards)
    return engine.table.due_shards(asked, engine.clock()) if len(asked) > 1 else asked


def _find_future(engine: Engine, shard: int) -> dict[str, list[MailboxRow]]:
    """Find mail and parts, by actor, that a clock which was ahead has written. Timers that it has
    set wait from now on.
    """
    now_ms = engine.clock()
    after_ms = now_ms + DUE_MS_MAX + SKEW_MS_MAX
    keys = engine.table.due_keys(shard, _END_OF_TIME_MS, after_ms=after_ms, limit=PAGE_KEYS)
    work = [key for key in keys if key.sort.startswith((MAIL, TIMERS, PARTS))]
    rows = [row for row in (engine.table.get_many(work) if work else ()) if row is not None]
    future = [row for row in rows if row.due_ms is not None and row.due_ms > after_ms]
    for row in filter(_is_timer, future):
        _put_off_timer(engine, row, now_ms, from_now=True)
    return _overdue_mail(row for row in future if not _is_timer(row))


def _overdue_mail(rows: Iterable[Row]) -> dict[str, list[MailboxRow]]:
    """The mail of rows by actor, that due first ahead."""
    late: dict[str, list[MailboxRow]] = {}
    for row in sorted(rows, key=lambda row: row.due_ms or 0):
        found = late.setdefault(row.key.partition, [])
        if not row.key.sort.startswith(PARTS):
            found.append(read_mail(row))
    return late


def _is_waiting_timer(row: Row, now_ms: int) -> bool:
    """Whether a row is a timer that is due later than the index has it."""
    return (timer_due_ms(row.key) or 0) > now_ms


def _put_off_timer(engine: Engine, row: Row, now_ms: int, *, from_now: bool = False) -> bool:
    """Postpone a timer that is not due yet; returns False if another process changed it first.

    With `from_now`, a timer that was set in the future waits its full time from now.
    """
    timer, due_ms = read_mail(row), timer_due_ms(row.key) or 0
    continuation = (timer_continuation(timer, due_ms, now_ms),)
    with suppress(Conflict):
        writes = restarted_timer(timer, due_ms, now_ms) if from_now else continuation
        engine.table.commit(writes)
        return True
    return False


def _is_timer(row: Row) -> bool:
    return row.key.sort.startswith(TIMERS)


def _most_attempts(item: tuple[str, list[MailboxRow]]) -> int:
    """The most attempts that any of an actor's late mail has had."""
    return max((mail.attempts for mail in item[1]), default=0)


def _redrive_actor(
    engine: Engine,
    address: str,
    late: list[MailboxRow],
    now_ms: int,
    budget_ms: int,
    holds_timers: HoldsTimers,
) -> int:
    """Attempt the actor's late mail once more; returns how many messages became dead letters."""
    ordered = sorted(late, key=lambda mail: mail.key.sort)
    if _most_attempts((address, late)) >= ISOLATE_FROM_ATTEMPTS:
        # The first row may be the poisoned one, and those behind it only wait for it.
        suspect = _find_suspect(engine, ordered[0], now_ms)
        behind = [mail for mail in ordered if mail.key != suspect.key]
        _postpone(engine, behind, now_ms + attempt_delay_ms(suspect.attempts + 1))
        ordered = [suspect]
    until = engine.seconds() + budget_ms / 1000
    attempted: list[MailboxRow] = []
    try:
        dead = sum(_count_attempt(engine, mail, now_ms, attempted) for mail in ordered)
        # The time of its own begins now: what is counted as an attempt is one.
        receivers = engine.advance(address, timers=not holds_timers(address), budget_ms=budget_ms)
        left_ms = int((until - engine.seconds()) * 1000)
        engine.advance_until_idle((address, *receivers), budget_ms=left_ms)
    except Unavailable:
        _withdraw_attempts(engine, attempted, now_ms)
        raise
    return dead


def _find_suspect(engine: Engine, late: MailboxRow, now_ms: int) -> MailboxRow:
    """Find the row that a fold of the actor begins with, for the first of its late ones: the first
    of the mailbox, which may be due later. Mail that has just come is no suspect for a timer, which
    would wait for ever where there always is some.
    """
    rows = engine.table.query(late.key.partition, MAIL, MAIL_END, limit=1).rows
    if not rows or rows[0].key.sort >= late.key.sort:
        return late
    first, due_ms = read_mail(rows[0]), rows[0].due_ms or 0
    is_new = not first.attempts and now_ms < due_ms <= now_ms + RECOVERY_DELAY_MS
    return late if is_new and timer_due_ms(late.key) is not None else first


def _postpone(engine: Engine, rows: Sequence[MailboxRow], due_ms: int) -> None:
    """Postpone rows of mail that would keep other rows out of the page.

    Another process may change them first, which is ignored.
    """
    for start in range(0, len(rows), OPERATIONS_MAX):
        writes = [postponement(mail, due_ms) for mail in rows[start : start + OPERATIONS_MAX]]
        with suppress(Conflict, Unavailable, InvalidCommit):
            engine.table.commit(writes)


def _count_attempt(
    engine: Engine, mail: MailboxRow, now_ms: int, attempted: list[MailboxRow]
) -> bool:
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


def _withdraw_attempts(engine: Engine, attempted: list[MailboxRow], now_ms: int) -> None:
    """Uncount attempts that failed because of the table, which says nothing about the mail."""
    for mail in attempted:
        with suppress(Conflict, Unavailable):
            engine.table.commit((attempt_write(mail, now_ms, -1)[1],))


def _delete_expired(engine: Engine, keys: Sequence[Key]) -> int:
    """Delete those of a page's rows whose time is over; returns how many."""
    now_ms = engine.clock()
    rows = [
        row
        for row in engine.table.get_many(keys)
        if row is not None and row.due_ms is not None and row.due_ms <= now_ms
    ]
    deletions = [Delete(row.key, row.revision) for row in rows]
    trimmed = sum(
        _trim_journal(engine, row.key) for row in rows if row.key.sort.startswith(JOURNAL)
    )
    try:
        if deletions:
            engine.table.commit(deletions)
    except Conflict as conflict:
        # Another process deletes them too: the others go one by one, but for that row.
        others = [delete for delete in deletions if delete.key != conflict.key]
        return trimmed + sum(_delete_one(engine, deletion) for deletion in others)
    return trimmed + len(deletions)


def _trim_journal(engine: Engine, expired: Key) -> int:
    """Delete the entries of a journal before one whose time is over; returns how many."""
    deleted = 0
    while rows := engine.table.query(
        expired.partition, JOURNAL, expired.sort, limit=OPERATIONS_MAX
    ).rows:
        engine.table.commit([Delete(row.key, Expect.ANYTHING) for row in rows])
        deleted += len(rows)
    return deleted


def _delete_one(engine: Engine, deletion: Delete) -> bool:
    try:
        engine.table.commit((deletion,))
    except Conflict:
        return False
    return True
