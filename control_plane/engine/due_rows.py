"""Due rows: retrying overdue mail and timers, and deleting expired rows.

Mail is normally folded directly after the commit that sent it. Unfolded mail is due in the table's
index a few seconds later; the recovery pass finds and retries it. Rows that only expire are in
separate shards, so that they never delay the retries.

- Attempts: an attempt is counted in the row before the row is folded, so that an attempt that
  crashes the process is counted too. From ISOLATE_FROM_ATTEMPTS attempts, the row is folded alone.
  After ATTEMPTS_MAX attempts, its first message becomes a dead letter. An attempt that failed
  because the table was unavailable is withdrawn.
- Suspects: a fold begins with the first row of the mailbox, even if that row is not due. The pass
  then counts the attempt in that row, so that a later row is not blamed.
- Order: rows that are due earlier come first, but rows with more attempts come later. One actor may
  use only a part of a pass while other actors wait. The rest of the time is divided among the
  actors that need more.
- Throttling: a table throttles single actors, so the pass continues with the next actor.
- Wrong clocks: a host whose clock was ahead has written rows that are due too late. Other rows are
  due at most DUE_MS_MAX from now. Each pass searches one shard for later rows, folds their mail,
  and restarts their timers.
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

# The number of consecutive actors for which the table was unavailable, after which a pass ends.
CONSECUTIVE_FAILURES_MAX = 3
# The delay before the rows of an actor that could not be advanced are due again.
POSTPONED_MS = 30_000
# The delay before held timers are due again: about the time until the next pass.
HELD_MS = 55_000
# The number of keys of a shard that are read together.
PAGE_KEYS = GET_MAX
BUDGET_MS = 20_000
_END_OF_TIME_MS = 1 << 52
MINUTE_MS = 60_000
# The minimum number of actors that a pass advances, even if all of them always have mail.
ACTORS_MIN = 8


HoldsTimers = Callable[[str], bool]
"""Returns whether the timers of the actor at an address must wait."""


def _holds_nothing(address: str) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class DueRowCounts:
    """The numbers of rows that a pass has handled."""

    redriven: int = 0
    """Rows of mail and timers that were retried."""
    dead: int = 0
    """Messages that became dead letters."""
    expired: int = 0
    """Expired rows that were deleted."""


def process_due_rows(
    engine: Engine,
    shards: Iterable[int] = WORK_SHARDS,
    expiry_shards: Iterable[int] = EXPIRY_SHARDS,
    *,
    budget_ms: int = BUDGET_MS,
    holds_timers: HoldsTimers | None = None,
) -> DueRowCounts:
    """Make a pass over the due index: retry overdue mail and timers, then delete expired rows.

    The pass counts attempts, makes dead letters of messages with too many attempts, and advances
    the other actors and the receivers of their mail. It ends when nothing is due or `budget_ms` has
    passed.

    Args:
        shards: the shards with mail, timers and spilled outboxes.
        expiry_shards: the shards with rows that only expire.
        holds_timers: selects actors whose timers are postponed by HELD_MS.

    Raises Unavailable after the retries if the table was unavailable for any actor. Expired rows
    are not deleted in this case.
    """
    until = engine.seconds() + budget_ms / 1000
    redrive = _Redrive(engine, until, budget_ms // ACTORS_MIN, holds_timers or _holds_nothing)
    remaining_shards: list[int] = list(shards)
    if remaining_shards:
        minute = engine.clock() // MINUTE_MS
        redrive.run_page(_find_future(engine, remaining_shards[minute % len(remaining_shards)]))
    while remaining_shards and redrive.has_time():
        page = _find_due(engine, remaining_shards, redrive.holds_timers)
        remaining_shards = page.full_shards
        redrive.expired += page.expired
        if not redrive.run_page(page.late) and not page.put_off:
            break
    redrive.run_unfinished()
    if redrive.failures:
        raise redrive.failures[-1]
    expired = _delete_expired_rows(engine, expiry_shards, until)
    return DueRowCounts(redrive.redriven, redrive.dead, redrive.expired + expired)


def _delete_expired_rows(engine: Engine, shards: Iterable[int], until: float) -> int:
    """Delete expired rows, for example idempotency keys, until no expired rows or no time is left.

    Return the number of deleted rows. Raises Unavailable.

    Args:
        until: the end of the pass, in seconds of the engine's monotonic clock.
    """
    deleted = 0
    for shard in _shards_with_due_rows(engine, shards):
        while engine.seconds() < until:
            keys = engine.table.due_keys(shard, engine.clock(), limit=PAGE_KEYS)
            count = _delete_expired(engine, keys)
            deleted += count
            # The index may lag behind and still contain deleted rows, so leave the rest to the next
            # pass.
            if not count:
                break
    return deleted


class _Redrive:
    """The retries of a pass: the remaining time, the counts, and the errors of the table."""

    def __init__(
        self, engine: Engine, until: float, actor_budget_ms: int, holds_timers: HoldsTimers
    ) -> None:
        self.holds_timers = holds_timers
        self._engine = engine
        self._until = until
        self._actor_budget_ms = actor_budget_ms
        self._unfinished: deque[str] = deque()
        self._seen: set[str] = set()
        self._consecutive_failures = 0
        self.redriven = 0
        self.dead = 0
        self.expired = 0
        self.failures: list[Unavailable] = []

    def has_time(self) -> bool:
        """Return whether time is left and the table has not failed too often in a row."""
        return self._consecutive_failures < CONSECUTIVE_FAILURES_MAX and self._remaining_ms() > 0

    def run_page(self, late: Mapping[str, list[MailboxRow]]) -> bool:
        """Advance the actors of a page. An actor that this pass has advanced before is skipped.

        Return whether an actor was advanced. Return False if the time ran out.

        Args:
            late: the overdue mail by actor.
        """
        new_mail = {address: mail for address, mail in late.items() if address not in self._seen}
        self._seen.update(new_mail)
        for address, mail in sorted(new_mail.items(), key=_most_attempts):
            if not self.has_time():
                return False
            self._run_actor(address, mail)
        return bool(new_mail)

    def run_unfinished(self) -> None:
        """Continue the actors that used up a budget, oldest first, until no time is left."""
        while self._unfinished and self.has_time():
            self._run_actor(self._unfinished.popleft(), [])

    def _run_actor(self, address: str, mail: list[MailboxRow]) -> None:
        """Retry an actor's overdue mail for at most `actor_budget_ms`, and record the outcome.

        An actor that used all this time is added to the unfinished actors. An unavailable table is
        logged, added to `failures` and counted as a consecutive failure. After another error, which
        is logged, the mail is postponed by POSTPONED_MS. No error is raised.
        """
        now_ms = self._engine.clock()
        actor_budget_ms = min(self._actor_budget_ms, self._remaining_ms())
        until = self._engine.seconds() + actor_budget_ms / 1000
        try:
            dead_letters = _redrive_actor(
                self._engine, address, mail, now_ms, actor_budget_ms, self.holds_timers
            )
        except Unavailable as error:
            log.warning("%s was not advanced: %s", address, error)
            self.failures.append(error)
            self._consecutive_failures += 1
            return
        except Exception:
            log.exception("%s cannot be advanced", address)
            _postpone(self._engine, mail, now_ms + POSTPONED_MS)
            return
        if self._engine.seconds() >= until:
            self._unfinished.append(address)
        self._consecutive_failures = 0
        self.dead += dead_letters
        self.redriven += len(mail) - dead_letters

    def _remaining_ms(self) -> int:
        """Return the time until the end of the pass in ms."""
        return int((self._until - self._engine.seconds()) * 1000)


@dataclass(frozen=True, slots=True)
class _DuePage:
    """The due rows of a read of the index."""

    late: dict[str, list[MailboxRow]]
    """The overdue mail by actor, in the order of due times. An actor that is due because of a
    spilled outbox may have no mail.
    """
    full_shards: list[int]
    """The shards that may have more due rows."""
    expired: int
    """The number of expired rows that were deleted."""
    put_off: int
    """The number of rows that are no longer due: deleted rows, and timers that were not due yet.
    Held timers are not counted.
    """


def _find_due(
    engine: Engine, shards: Iterable[int], holds_timers: HoldsTimers = _holds_nothing
) -> _DuePage:
    """Read at most PAGE_KEYS due rows of each shard and group the mail by actor.

    Due rows that are neither mail nor timers nor parts are deleted. Held timers are postponed by
    HELD_MS. Timers before their due time are postponed to that time, or to DUE_MS_MAX from now.
    Raises Unavailable if the index or the rows cannot be read.
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
    """Return the shards that may have due rows, by a query. Return a single shard unread."""
    asked = tuple(shards)
    return engine.table.due_shards(asked, engine.clock()) if len(asked) > 1 else asked


def _find_future(engine: Engine, shard: int) -> dict[str, list[MailboxRow]]:
    """Find the mail and spilled outboxes of hosts with clocks that were ahead, by actor.

    Timers from these hosts are restarted.
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
    """Group rows by actor and decode the mail, in the order of due times.

    Rows of a spilled outbox add their actor without mail.
    """
    late: dict[str, list[MailboxRow]] = {}
    for row in sorted(rows, key=lambda row: row.due_ms or 0):
        actor_mail = late.setdefault(row.key.partition, [])
        if not row.key.sort.startswith(PARTS):
            actor_mail.append(read_mail(row))
    return late


def _is_waiting_timer(row: Row, now_ms: int) -> bool:
    """Return whether a row is a timer with a due time after `now_ms`."""
    return (timer_due_ms(row.key) or 0) > now_ms


def _put_off_timer(engine: Engine, row: Row, now_ms: int, *, from_now: bool = False) -> bool:
    """Postpone a timer that is not due yet. Return False if another process changed the timer
    first.

    Args:
        from_now: whether to restart the delay of a timer that a host with a wrong clock has set.
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
    """Return the maximum number of attempts among an actor's overdue mail. 0 without mail."""
    return max((mail.attempts for mail in item[1]), default=0)


def _redrive_actor(
    engine: Engine,
    address: str,
    late: list[MailboxRow],
    now_ms: int,
    budget_ms: int,
    holds_timers: HoldsTimers,
) -> int:
    """Count an attempt for each overdue row. Then advance the actor and the receivers of its
    messages.

    A row with ATTEMPTS_MAX attempts becomes a dead letter and is not counted. If any row has
    ISOLATE_FROM_ATTEMPTS or more attempts, only the row that the actor folds next is attempted, and
    the other rows are postponed.

    Args:
        holds_timers: if true for the actor, its timers are not folded.
        budget_ms: the time limit for advancing.

    Return the number of messages that became dead letters. Raises Unavailable after the counted
    attempts are withdrawn. Other errors keep the counts.
    """
    ordered = sorted(late, key=lambda mail: mail.key.sort)
    if _most_attempts((address, late)) >= ISOLATE_FROM_ATTEMPTS:
        # Isolate the row that may crash the process. The rows behind are postponed until that row
        # is retried.
        suspect = _find_suspect(engine, ordered[0], now_ms)
        behind = [mail for mail in ordered if mail.key != suspect.key]
        _postpone(engine, behind, now_ms + attempt_delay_ms(suspect.attempts + 1))
        ordered = [suspect]
    until = engine.seconds() + budget_ms / 1000
    attempted: list[MailboxRow] = []
    try:
        dead = sum(_count_attempt(engine, mail, now_ms, attempted) for mail in ordered)
        # The full budget starts after the attempts are counted, so that each counted attempt is
        # made.
        receivers = engine.advance(address, timers=not holds_timers(address), budget_ms=budget_ms)
        left_ms = int((until - engine.seconds()) * 1000)
        engine.advance_until_idle((address, *receivers), budget_ms=left_ms)
    except Unavailable:
        _withdraw_attempts(engine, attempted, now_ms)
        raise
    return dead


def _find_suspect(engine: Engine, late: MailboxRow, now_ms: int) -> MailboxRow:
    """Return the row with which a fold of the actor begins: the first row of the mailbox, or
    `late`.

    The first row of the mailbox may be due later than `late`. If `late` is a timer, new mail
    without attempts is not a suspect. Otherwise the timer would wait for ever while new mail
    arrives.
    """
    rows = engine.table.query(late.key.partition, MAIL, MAIL_END, limit=1).rows
    if not rows or rows[0].key.sort >= late.key.sort:
        return late
    first, due_ms = read_mail(rows[0]), rows[0].due_ms or 0
    is_new = not first.attempts and now_ms < due_ms <= now_ms + RECOVERY_DELAY_MS
    return late if is_new and timer_due_ms(late.key) is not None else first


def _postpone(engine: Engine, rows: Sequence[MailboxRow], due_ms: int) -> None:
    """Change the due time of mail, so that other rows fit into the next page.

    Errors of the table are ignored. After a conflict, up to OPERATIONS_MAX rows stay due.
    """
    for start in range(0, len(rows), OPERATIONS_MAX):
        writes = [postponement(mail, due_ms) for mail in rows[start : start + OPERATIONS_MAX]]
        with suppress(Conflict, Unavailable, InvalidCommit):
            engine.table.commit(writes)


def _count_attempt(
    engine: Engine, mail: MailboxRow, now_ms: int, attempted: list[MailboxRow]
) -> bool:
    """Count an attempt in the row and add the row to `attempted`.

    After ATTEMPTS_MAX attempts, make a dead letter of the row's first message instead. Return
    whether a dead letter was made. Do nothing if another process was faster.
    """
    try:
        if mail.attempts >= ATTEMPTS_MAX:
            engine.advance_until_idle(engine.dead_letter_mail(mail))
            return True
        counted, write = attempt_write(mail, now_ms)
        engine.table.commit((write,))
        attempted.append(counted)
    except (Conflict, TornRead, CommandRefused):
        # Another process was faster. The next pass checks the row again.
        return False
    return False


def _withdraw_attempts(engine: Engine, attempted: list[MailboxRow], now_ms: int) -> None:
    """Withdraw attempts that failed because the table was unavailable, if the table answers now."""
    for mail in attempted:
        with suppress(Conflict, Unavailable):
            engine.table.commit((attempt_write(mail, now_ms, -1)[1],))


def _delete_expired(engine: Engine, keys: Sequence[Key]) -> int:
    """Delete the rows of `keys` that are due now. Return the number of deleted rows.

    With an expired journal row, all earlier rows of the same journal are deleted and counted too.
    """
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
        # Another process deletes rows of this page as well. Delete the remaining rows separately.
        others = [delete for delete in deletions if delete.key != conflict.key]
        return trimmed + sum(_delete_one(engine, deletion) for deletion in others)
    return trimmed + len(deletions)


def _trim_journal(engine: Engine, expired: Key) -> int:
    """Delete the journal rows before an expired row. Return the number of deleted rows."""
    deleted = 0
    while rows := engine.table.query(
        expired.partition, JOURNAL, expired.sort, limit=OPERATIONS_MAX
    ).rows:
        engine.table.commit([Delete(row.key, Expect.ANYTHING) for row in rows])
        deleted += len(rows)
    return deleted


def _delete_one(engine: Engine, deletion: Delete) -> bool:
    """Delete a row. Return False if another process has changed the row."""
    try:
        engine.table.commit((deletion,))
    except Conflict:
        return False
    return True
