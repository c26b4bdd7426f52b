"""Recovery passes over due rows: retrying overdue mail and timers, and deleting expired rows.

Mail is normally folded directly after the commit that sent it. Unfolded mail is due in the table's
index a few seconds later; the recovery pass finds and retries it. Rows that only expire are in
separate shards, so that they never delay the retries.

- Order: rows that are due earlier come first, but rows with more attempts come later. One actor may
  use only a part of a pass while other actors wait. The rest of the time is divided among the
  actors that need more.
- Schedules: the time of a schedule is a due row as well. The pass calls a function that submits the
  experiment, because the engine cannot check submissions.
- Throttling: a table throttles single actors, so the pass continues with the next actor.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from control_plane.engine.due_index import (
    PAGE_KEYS,
    HoldsTimers,
    find_due,
    find_future,
    holds_nothing,
    postpone,
    shards_with_due_rows,
    waiting_time_ms,
)
from control_plane.engine.engine import Engine
from control_plane.engine.mailbox import MailboxRow
from control_plane.engine.redrive import most_attempts, redrive_actor
from control_plane.engine.row_expiry import delete_expired
from control_plane.rows.user_rows import SCHEDULE_TIME
from control_plane.state.table import EXPIRY_SHARDS, WORK_SHARDS, Unavailable

log = logging.getLogger(__name__)

# The number of consecutive actors for which the table was unavailable, after which a pass ends.
CONSECUTIVE_FAILURES_MAX = 3
# The delay before the rows of an actor that could not be advanced are due again.
POSTPONED_MS = 30_000
BUDGET_MS = 20_000
MINUTE_MS = 60_000
# The minimum number of actors that a pass advances, even if all of them always have mail.
ACTORS_MIN = 8

RunDueSchedule = Callable[[str], None]
"""Processes the due time of a schedule, given the partition of the time's row."""


def leave_schedule(partition: str) -> None:
    """Do nothing, for passes that submit no experiments: the time of the schedule stays due."""


@dataclass(frozen=True, slots=True)
class DueRowCounts:
    """The numbers of rows that a pass has handled."""

    redriven: int = 0
    """Rows of mail and timers that were retried."""
    dead: int = 0
    """Messages that became dead letters."""
    expired: int = 0
    """Expired rows that were deleted."""
    late_ms: int = 0
    """The time that the oldest message had waited for this pass, in ms. 0 without late messages.

    Messages that an earlier pass has attempted do not count.
    """
    events: tuple[str, ...] = ()
    """The partitions of events that webhooks are to deliver now."""


def process_due_rows(
    engine: Engine,
    shards: Iterable[int] = WORK_SHARDS,
    expiry_shards: Iterable[int] = EXPIRY_SHARDS,
    *,
    budget_ms: int = BUDGET_MS,
    holds_timers: HoldsTimers | None = None,
    run_schedule: RunDueSchedule = leave_schedule,
    on_events: Callable[[tuple[str, ...]], None] = lambda events: None,
) -> DueRowCounts:
    """Make a recovery pass: retry overdue mail and timers, then delete expired rows.

    The pass counts attempts in the rows, makes dead letters of messages with too many attempts, and
    advances the actors and the receivers of their mail. It also finds mail of hosts whose clock was
    ahead, and spilled outboxes, which are stored messages that no process has mailed yet. It ends
    when nothing is due, when `budget_ms` has passed, or after CONSECUTIVE_FAILURES_MAX failures of
    the table in a row. An actor that cannot be advanced is logged, and its mail is postponed.

    Return the numbers of handled rows, and the partitions of due events of webhooks. The caller
    delivers the events; after HELD_MS, the events are due again.

    Raises Unavailable if the index cannot be read. Raises Unavailable after the retries if the
    table was unavailable for any actor. Expired rows are not deleted in these cases.

    Args:
        shards: the shards with mail, timers and spilled outboxes. Empty retries nothing.
        expiry_shards: the shards with rows that only expire. Empty deletes nothing.
        budget_ms: the time limit of the pass. Started work is completed.
        holds_timers: returns whether the timers of the actor at an address are postponed by HELD_MS
            instead of folded. None postpones no timers.
        run_schedule: processes the due time of a schedule. Errors are logged, as errors of actors
            are. The default leaves the time to another pass.
        on_events: gets the partitions of due events, also if the pass then fails.
    """
    until = engine.seconds() + budget_ms / 1000
    actor_budget_ms = budget_ms // ACTORS_MIN
    redrive = _Redrive(engine, until, actor_budget_ms, holds_timers or holds_nothing, run_schedule)
    remaining_shards: list[int] = list(shards)
    if remaining_shards:
        minute = engine.clock() // MINUTE_MS
        redrive.run_page(find_future(engine, remaining_shards[minute % len(remaining_shards)]))
    while remaining_shards and redrive.has_time():
        page = find_due(engine, remaining_shards, redrive.holds_timers)
        remaining_shards = page.full_shards
        redrive.expired += page.expired
        redrive.events.update(dict.fromkeys(page.events))
        if not redrive.run_page(page.late) and not page.put_off:
            break
    redrive.run_unfinished()
    on_events(tuple(redrive.events))
    if redrive.failures:
        raise redrive.failures[-1]
    expired = _delete_expired_rows(engine, expiry_shards, until)
    expired += redrive.expired
    counts = redrive.redriven, redrive.dead, expired, redrive.late_ms
    return DueRowCounts(*counts, tuple(redrive.events))


def _delete_expired_rows(engine: Engine, shards: Iterable[int], until: float) -> int:
    """Delete expired rows, for example idempotency keys, until no expired rows or no time is left.

    Return the number of deleted rows, which includes journal rows before an expired journal row.
    Raises Unavailable; earlier deletions remain.

    Args:
        until: the end of the pass, in seconds of the engine's monotonic clock.
    """
    deleted = 0
    for shard in shards_with_due_rows(engine, shards):
        while engine.seconds() < until:
            keys = engine.table.due_keys(shard, engine.clock(), limit=PAGE_KEYS)
            count = delete_expired(engine, keys)
            deleted += count
            # The index may lag behind and still contain deleted rows, so leave the rest to the next
            # pass.
            if not count:
                break
    return deleted


class _Redrive:
    """The retries of a pass: the remaining time, the counts, and the errors of the table.

    `redriven` counts the retried rows, `dead` the messages that became dead letters, and `expired`
    the deleted rows. `late_ms` is the longest time that a message has waited. `events` has the
    partitions of due events as keys. `failures` are the errors of an unavailable table.

    Args:
        until: the end of the pass, in seconds of the engine's monotonic clock.
        actor_budget_ms: the time for an actor while other actors wait.
        holds_timers: returns whether the timers of an actor must wait.
        run_schedule: processes the due time of a schedule.
    """

    def __init__(
        self,
        engine: Engine,
        until: float,
        actor_budget_ms: int,
        holds_timers: HoldsTimers,
        run_schedule: RunDueSchedule,
    ) -> None:
        self.holds_timers = holds_timers
        self._run_schedule = run_schedule
        self._engine = engine
        self._until = until
        # Schedules of a single user must not use up the time of mail and of expired rows.
        self._schedules_until = (engine.seconds() + until) / 2
        self._actor_budget_ms = actor_budget_ms
        self._unfinished: deque[str] = deque()
        self._seen: set[str] = set()
        self._consecutive_failures = 0
        self.redriven = 0
        self.dead = 0
        self.expired = 0
        self.late_ms = 0
        self.events: dict[str, None] = {}
        self.failures: list[Unavailable] = []

    def has_time(self) -> bool:
        """Return whether time is left and fewer than CONSECUTIVE_FAILURES_MAX actors in a row
        failed.

        Only failures because of an unavailable table count.
        """
        return self._consecutive_failures < CONSECUTIVE_FAILURES_MAX and self._remaining_ms() > 0

    def run_page(self, late: Mapping[str, list[MailboxRow]]) -> bool:
        """Advance the actors of a page: fewest attempts first, then in the order of `late`. Due
        schedules are last, and only run in the first half of the pass.

        An actor that this pass has advanced before is skipped. No error is raised: `_run_actor`
        records or logs each error. Return whether the page had other actors. Return False if the
        time ran out before the end of the page.

        Args:
            late: the overdue mail by actor.
        """
        new_mail = {address: mail for address, mail in late.items() if address not in self._seen}
        waited_ms = waiting_time_ms(late.values(), self._engine.clock())
        self.late_ms = max(self.late_ms, waited_ms)
        self._seen.update(new_mail)
        for address, mail in sorted(new_mail.items(), key=_order):
            if not self.has_time():
                return False
            if _is_schedule(address) and self._engine.seconds() >= self._schedules_until:
                # The time stays due, and the next pass runs the schedule.
                continue
            self._run_actor(address, mail)
        return bool(new_mail)

    def run_unfinished(self) -> None:
        """Continue the actors that used up the time for an actor, until no actor or no time is
        left.

        The actor that waits longest comes first. An actor that uses up its time again is continued
        after the others. Mail is folded without counting attempts. Due timers are folded too,
        unless `holds_timers` selects the actor, and the receivers of new mail are advanced. Stop
        early after CONSECUTIVE_FAILURES_MAX failures of the table in a row.

        No error is raised. An unavailable table is logged and added to `failures`; other errors are
        only logged.
        """
        while self._unfinished and self.has_time():
            self._run_actor(self._unfinished.popleft(), [])

    def _run_actor(self, address: str, mail: list[MailboxRow]) -> None:
        """Retry an actor's overdue mail for at most `actor_budget_ms`, and record the outcome.

        For the partition of a schedule's time, call `run_schedule` instead. Mail is overdue if it
        was not folded within seconds after the sender's commit. The receivers of the actor's mail
        are advanced too. An actor that used all its time is added to the
        unfinished actors. Retried rows and dead letters are counted.

        No error is raised. An unavailable table is logged, added to `failures` and counted as a
        consecutive failure. After another error, which is logged, the mail is postponed by
        POSTPONED_MS. Neither case counts the rows as retried.

        Args:
            mail: the overdue mail. Empty advances the actor without counting attempts.
        """
        now_ms = self._engine.clock()
        actor_budget_ms = min(self._actor_budget_ms, self._remaining_ms())
        until = self._engine.seconds() + actor_budget_ms / 1000
        dead_letters = 0
        try:
            if _is_schedule(address):
                self._run_schedule(address)
            else:
                dead_letters = redrive_actor(
                    self._engine, address, mail, now_ms, actor_budget_ms, self.holds_timers
                )
        except Unavailable as error:
            log.warning("%s was not advanced: %s", address, error)
            self.failures.append(error)
            self._consecutive_failures += 1
            return
        except Exception:
            log.exception("%s cannot be advanced", address)
            postpone(self._engine, mail, now_ms + POSTPONED_MS)
            return
        if self._engine.seconds() >= until:
            self._unfinished.append(address)
        self._consecutive_failures = 0
        self.dead += dead_letters
        self.redriven += len(mail) - dead_letters

    def _remaining_ms(self) -> int:
        """Return the time until the end of the pass in ms. Zero or negative after the end."""
        return int((self._until - self._engine.seconds()) * 1000)


def _is_schedule(address: str) -> bool:
    """Return whether an address is the partition of a schedule's time."""
    return address.startswith(SCHEDULE_TIME.partition)


def _order(item: tuple[str, list[MailboxRow]]) -> tuple[bool, int]:
    """Return the sort key of an actor with overdue mail, or of a schedule with a due time."""
    return _is_schedule(item[0]), most_attempts(item)
