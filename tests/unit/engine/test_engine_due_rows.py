"""Passes over the due index: order, budgets, throttled tables and wrong clocks."""

from collections.abc import Sequence

import pytest

from control_plane.actors.messages.pool import (
    PoolConfigured,
    SchedulingContinued,
    SlotsRequested,
)
from control_plane.engine import due_index, due_rows, journal, mailbox
from control_plane.engine.actor_types import ACTOR_TYPES, JOURNAL_KEPT_MS, encode_message_for
from control_plane.engine.engine import Engine
from control_plane.engine.engine_timing import EngineTiming
from control_plane.engine.head import HEAD
from control_plane.engine.replay import replay_actor
from control_plane.state.memory import MemoryTable
from control_plane.state.table import (
    NEVER_MS,
    WORK_SHARDS,
    Expect,
    Key,
    Put,
    StateTable,
    Unavailable,
    Write,
    shard_of,
)
from simulator.faults.table_faults import TableDecorator
from tests.engine_timing import UNHURRIED
from tests.unit.engine.late_mail import NOW_MS, attempts, mail_for


class Clock:
    now_ms = NOW_MS


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def engine(clock: Clock) -> Engine:
    return Engine(MemoryTable(), lambda: clock.now_ms, UNHURRIED)


class RefusingTable(TableDecorator):
    """A table that refuses commits of some actors while `busy` is True.

    Commits that count attempts succeed.
    """

    busy = True

    def __init__(self, table: StateTable, *pools: str) -> None:
        super().__init__(table)
        self.pools = pools
        self.refused: list[str] = []

    def commit(self, writes: Sequence[Write]) -> None:
        heads = [write.key.partition for write in writes if write.key.sort == HEAD]
        refused = [name for name in heads if self.busy and name in self.pools]
        self.refused += refused
        if refused:
            raise Unavailable("throttled")
        super().commit(writes)


def late_pools(engine: Engine, number: int) -> list[str]:
    """Create pools with a late message each. Return the pools in the order of a pass."""
    names = [f"p{n}" for n in range(number)]
    pools = [f"pool#{name}" for name in names]
    for name, pool in zip(names, pools, strict=True):
        engine.execute_command(pool, PoolConfigured(name))
        key = mailbox.mail_key(pool, 1, "s")
        encoded = [encode_message_for(pool, SlotsRequested(1, 1, 1, "1"))]
        engine.table.commit([mailbox.mail_write(key, "s", mailbox.FIRST, 1, encoded, NOW_MS)])
    return sorted(pools, key=shard_of)


def test_attempts_on_an_unavailable_table_are_withdrawn(engine: Engine, clock: Clock) -> None:
    [pool] = late_pools(engine, 1)
    table = RefusingTable(engine.table, pool)
    throttled = Engine(table, lambda: clock.now_ms, UNHURRIED)
    for _ in range(3 * mailbox.ATTEMPTS_MAX):
        clock.now_ms += 60_000
        with pytest.raises(Unavailable):
            due_rows.process_due_rows(throttled)
        assert attempts(engine, pool) == [0]
    table.busy = False
    clock.now_ms += 60_000
    # The message was sent at time 0.
    counts = due_rows.DueRowCounts(redriven=1, late_ms=clock.now_ms)
    assert due_rows.process_due_rows(throttled) == counts
    assert attempts(engine, pool) == []


def test_pass_continues_after_a_throttled_actor(engine: Engine, clock: Clock) -> None:
    first, second = late_pools(engine, 2)
    table = RefusingTable(engine.table, first)
    throttled = Engine(table, lambda: clock.now_ms, UNHURRIED)
    with pytest.raises(Unavailable, match="throttled"):
        due_rows.process_due_rows(throttled)
    assert throttled.read_state(first).queued == 0
    assert throttled.read_state(second).queued == 1
    assert attempts(engine, first) == [0]


def test_pass_ends_after_consecutive_failures(engine: Engine, clock: Clock) -> None:
    pools = late_pools(engine, 2 * due_rows.CONSECUTIVE_FAILURES_MAX)
    table = RefusingTable(engine.table, *pools)
    with pytest.raises(Unavailable):
        due_rows.process_due_rows(Engine(table, lambda: clock.now_ms, UNHURRIED))
    assert sorted(set(table.refused), key=shard_of) == pools[: due_rows.CONSECUTIVE_FAILURES_MAX]


def test_failures_between_successes_do_not_end_the_pass(engine: Engine, clock: Clock) -> None:
    pools = late_pools(engine, 2 * due_rows.CONSECUTIVE_FAILURES_MAX)
    table = RefusingTable(engine.table, *pools[::2])
    throttled = Engine(table, lambda: clock.now_ms, UNHURRIED)
    with pytest.raises(Unavailable):
        due_rows.process_due_rows(throttled)
    assert [throttled.read_state(pool).queued for pool in pools] == [
        0,
        1,
    ] * due_rows.CONSECUTIVE_FAILURES_MAX


def two_pools_of_one_shard(engine: Engine) -> tuple[str, str]:
    """Create two pools with rows in a common shard of the index."""
    first = "pool#p0"
    second = next(
        name for name in (f"pool#p{n}" for n in range(1, 999)) if shard_of(name) == shard_of(first)
    )
    for pool in (first, second):
        engine.execute_command(pool, PoolConfigured(pool.removeprefix("pool#")))
    return first, second


def test_mail_behind_a_poisoned_row_does_not_fill_the_page(engine: Engine) -> None:
    poisoned, other = two_pools_of_one_shard(engine)
    for number in range(3 * due_index.PAGE_KEYS):
        mail_for(engine, poisoned, number, mailbox.ISOLATE_FROM_ATTEMPTS)
    mail_for(engine, other, 1)
    late = due_index.find_due(engine, WORK_SHARDS).late
    assert other not in late
    due_rows.process_due_rows(engine)
    assert engine.read_state(other).queued == 1


def test_mail_of_an_unreadable_actor_does_not_fill_the_page(engine: Engine, clock: Clock) -> None:
    garbled, other = two_pools_of_one_shard(engine)
    head = engine.table.get(Key(garbled, HEAD))
    assert head is not None
    engine.table.commit((Put(head.key, head.revision + 1, b"no head", head.revision),))
    for number in range(3 * due_index.PAGE_KEYS):
        mail_for(engine, garbled, number)
    for _ in range(200):
        due_rows.process_due_rows(engine)
        clock.now_ms += 1000
    mail_for(engine, other, 1)
    due_rows.process_due_rows(engine)
    assert engine.read_state(other).queued == 1


def test_expired_rows_are_deleted_after_the_retries(engine: Engine) -> None:
    (pool,) = late_pools(engine, 1)
    keys = [Key(f"idempotency#{n % 7}", f"{n}") for n in range(1_000)]
    for key in keys:
        engine.table.commit((Put(key, 1, b"", Expect.ABSENT, NOW_MS, expires=True),))
    order: list[str] = []
    engine.on_commit = order.append
    counts = due_rows.process_due_rows(engine)
    assert (counts.redriven, counts.expired) == (1, 1_000)
    assert order == [pool]
    assert all(engine.table.get(key) is None for key in keys)


def test_expired_rows_in_work_shards_are_deleted(engine: Engine) -> None:
    keys = [Key("idempotency#me", f"{n}") for n in range(250)]
    for key in keys:
        engine.table.commit((Put(key, 1, b"", Expect.ABSENT, NOW_MS),))
    assert due_rows.process_due_rows(engine).expired == 250


class SlowClock:
    """A clock that advances by `step` seconds whenever the clock is read."""

    def __init__(self, step: float) -> None:
        self.step = step
        self.now = 0.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now


@pytest.mark.parametrize("budget_ms", [0, 100, 1_000, 10_000])
def test_pass_ends_with_the_budget_and_the_next_pass_continues(budget_ms: int) -> None:
    slow = SlowClock(0.01)
    engine = Engine(MemoryTable(), lambda: NOW_MS + 1_000_000, EngineTiming(slow))
    pools = late_pools(engine, 40)
    began = slow.now
    counts = due_rows.process_due_rows(engine, budget_ms=budget_ms)
    # A commit that began in time is completed, which reads the clock a few times more.
    assert slow.now - began <= budget_ms / 1000 + 0.25
    assert (counts.redriven < len(pools)) == (budget_ms < 10_000)
    for _ in range(200):
        due_rows.process_due_rows(engine, budget_ms=1_000)
    assert [engine.read_state(pool).queued for pool in pools] == [1] * len(pools)


def test_earliest_due_row_comes_first_across_shards() -> None:
    slow = SlowClock(0.01)
    engine = Engine(MemoryTable(), lambda: NOW_MS + 1_000_000, EngineTiming(slow))
    # The pools are in the order of the shards. The last pool is due first.
    *_, last = pools = late_pools(engine, 40)
    (row,) = engine.table.query(last, mailbox.MAIL, mailbox.MAIL_END).rows
    mail = mailbox.read_mail(row)
    engine.table.commit([mailbox.postponement(mail, NOW_MS - 1)])
    # Time for one or two actors.
    due_rows.process_due_rows(engine, budget_ms=200)
    taken = [pool for pool in pools if not engine.has_mail(pool)]
    assert len(taken) < 10
    assert last in taken


def test_busy_actor_leaves_time_for_waiting_actors() -> None:
    """An actor with mail for minutes delays neither the timers nor the mail of other actors."""
    slow = SlowClock(0.05)
    engine = Engine(MemoryTable(), lambda: NOW_MS + 1_000_000, EngineTiming(slow))
    busy, *others = late_pools(engine, 10)
    for number in range(6_000):
        mail_for(engine, busy, number, due_ms=NOW_MS - 1)
    due_rows.process_due_rows(engine, budget_ms=10_000)
    assert not [pool for pool in others if engine.has_mail(pool)]
    # The busy actor gets the rest of the time.
    assert slow.now >= 10
    assert engine.has_mail(busy)


class SlowTable(TableDecorator):
    """A table in which a commit takes 10 ms and reads take no time."""

    seconds = 0.0

    def commit(self, writes: Sequence[Write]) -> None:
        self.seconds += 0.01
        super().commit(writes)


def test_mail_without_time_in_a_pass_never_becomes_a_dead_letter(clock: Clock) -> None:
    """An attempt is counted only if the message was folded."""
    table = SlowTable(MemoryTable())
    engine = Engine(table, lambda: clock.now_ms, EngineTiming(lambda: table.seconds))
    engine.execute_command("pool#p0", PoolConfigured("p0"))
    for number in range(300):
        mail_for(engine, "pool#p0", number)
    while engine.has_mail("pool#p0"):
        # Longer than the delay before the next attempt of any row.
        clock.now_ms += 60_000
        # Shorter than the commit that counts an attempt.
        counts = due_rows.process_due_rows(engine, budget_ms=9)
        assert counts.dead == 0
    assert engine.read_state("pool#p0").queued == 300


@pytest.mark.parametrize("budget_ms", [0, 50, 500])
def test_advance_until_idle_ends_with_the_budget(budget_ms: int) -> None:
    slow = SlowClock(0.01)
    engine = Engine(MemoryTable(), lambda: NOW_MS, EngineTiming(slow))
    engine.execute_command("pool#p0", PoolConfigured("p0"))
    for number in range(10_000):
        mail_for(engine, "pool#p0", number)
    began = slow.now
    engine.advance_until_idle(("pool#p0",), budget_ms=budget_ms)
    assert slow.now - began <= budget_ms / 1000 + 0.15
    assert engine.has_mail("pool#p0")


def test_pool_journal_expires_after_a_month(engine: Engine, clock: Clock) -> None:
    pool = "pool#p0"
    engine.execute_command(pool, PoolConfigured("p0"))
    for number in range(1, 10 * journal.TRIMMED_ROWS):
        engine.post_message(pool, SlotsRequested(number, 1, 1, f"{number:06d}"), sender="s")
    written = len(list(journal.read_entry_rows(engine.table, pool)))
    assert written == 10 * journal.TRIMMED_ROWS
    clock.now_ms += JOURNAL_KEPT_MS - 1
    due_rows.process_due_rows(engine)
    assert len(list(journal.read_entry_rows(engine.table, pool))) == written
    engine.post_message(pool, SlotsRequested(999, 1, 1, "000999"), sender="s")
    clock.now_ms += 1
    assert due_rows.process_due_rows(engine).expired == written
    [row] = journal.read_entry_rows(engine.table, pool)
    assert journal.entry_revision(row) == written + 1
    difference = replay_actor(engine.table, pool).difference
    assert difference is not None
    assert difference.recorded == "no entry of revision 1"


def test_journals_of_experiments_and_trials_never_expire() -> None:
    assert {
        name for name, actor_kind in ACTOR_TYPES.items() if actor_kind.journal_kept_ms is None
    } == {
        "experiment",
        "trial",
    }


MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
# Each minute, a pass searches one of the 16 shards for rows of a clock that was ahead.
SEARCH_ALL_SHARDS_MS = 16 * MINUTE_MS


def test_mail_from_a_clock_that_was_ahead_is_folded(engine: Engine, clock: Clock) -> None:
    pools = [f"pool#p{n}" for n in range(40)]
    for pool in pools:
        engine.execute_command(pool, PoolConfigured(pool.removeprefix("pool#")))
        mail_for(engine, pool, 1, due_ms=NOW_MS + 24 * HOUR_MS + mailbox.RECOVERY_DELAY_MS)
        # The host whose clock was ahead also counted an attempt, so the row is due 2^5 s later.
        late_ms = NOW_MS + 24 * HOUR_MS + mailbox.attempt_delay_ms(5)
        mail_for(engine, pool, 2, attempts=mailbox.ATTEMPTS_MAX - 1, due_ms=late_ms)
    for _ in range(SEARCH_ALL_SHARDS_MS // MINUTE_MS):
        due_rows.process_due_rows(engine)
        clock.now_ms += MINUTE_MS
    assert [engine.read_state(pool).queued for pool in pools] == [2] * len(pools)


def test_mail_from_a_clock_that_was_ahead_to_a_missing_actor_is_dropped(
    engine: Engine, clock: Clock
) -> None:
    mail_for(engine, "pool#gone", 1, due_ms=NOW_MS + 24 * HOUR_MS)
    for _ in range(SEARCH_ALL_SHARDS_MS // MINUTE_MS):
        due_rows.process_due_rows(engine)
        clock.now_ms += MINUTE_MS
    assert not engine.has_mail("pool#gone")


@pytest.mark.parametrize("delay_ms", [1_000, 59 * MINUTE_MS, 61 * MINUTE_MS, 5 * HOUR_MS])
@pytest.mark.parametrize("ahead_ms", [0, 3_000, 20 * MINUTE_MS, 2 * HOUR_MS, 720 * HOUR_MS])
def test_timer_from_a_clock_that_was_ahead_waits_the_whole_delay(
    engine: Engine, clock: Clock, delay_ms: int, ahead_ms: int
) -> None:
    pool, set_ms = "pool#p0", NOW_MS + ahead_ms
    engine.execute_command(pool, PoolConfigured("p0"))
    message = encode_message_for(pool, SchedulingContinued())
    clock_of_commit = mailbox.next_clock(0, set_ms)
    engine.table.commit(
        [mailbox.timer_write(pool, set_ms + delay_ms, clock_of_commit, message, set_ms)]
    )
    while engine.table.query(pool, mailbox.TIMERS, mailbox.TIMERS + "~").rows:
        clock.now_ms += MINUTE_MS
        due_rows.process_due_rows(engine)
    waited_ms = clock.now_ms - NOW_MS
    # A timer that is due within an hour could also be set by a correct clock, so its delay does not
    # start again.
    late_ms = ahead_ms if ahead_ms <= mailbox.DUE_MS_MAX else SEARCH_ALL_SHARDS_MS
    assert delay_ms <= waited_ms <= delay_ms + late_ms + MINUTE_MS


def test_held_timers_wait_while_mail_is_folded(engine: Engine, clock: Clock) -> None:
    """In an outage of the API, agents cannot do the work that a timer would find overdue."""
    for number in (0, 1):
        engine.execute_command(f"pool#p{number}", PoolConfigured(f"p{number}"))
        address, timer = f"pool#p{number}", mailbox.timer_key(f"pool#p{number}", NOW_MS, 1)
        encoded = [encode_message_for(address, PoolConfigured(f"p{number}"))]
        put = mailbox.mail_write(timer, address, mailbox.FIRST, 1, encoded, NOW_MS)
        engine.table.commit((put,))
        mail_for(engine, address, 1, due_ms=NOW_MS)
    clock.now_ms = NOW_MS + 1

    def timers() -> list[str]:
        pages = {
            name: engine.table.query(name, "T#", "T#~").rows for name in ("pool#p0", "pool#p1")
        }
        return [address for address, rows in pages.items() if rows]

    for _ in range(3):
        due_rows.process_due_rows(engine, holds_timers=lambda address: address == "pool#p0")
        # The mail of both pools and the timer of pool p1 were folded.
        assert not engine.has_mail("pool#p0")
        assert not engine.has_mail("pool#p1")
        assert timers() == ["pool#p0"]
        clock.now_ms += due_index.HELD_MS
    due_rows.process_due_rows(engine)
    assert timers() == []


class ExactTable(TableDecorator):
    """A table that returns exactly the shards with due rows, and records all reads of shards."""

    def __init__(self, table: StateTable) -> None:
        super().__init__(table)
        self.read_shards: list[int] = []

    def due_shards(self, shards: Sequence[int], until_ms: int) -> tuple[int, ...]:
        return tuple(shard for shard in shards if self.table.due_keys(shard, until_ms, limit=1))

    def due_keys(
        self, shard: int, until_ms: int, *, after_ms: int = NEVER_MS, limit: int = 100
    ) -> tuple[Key, ...]:
        # Every pass reads one shard to search for rows of a clock that was ahead.
        if after_ms == NEVER_MS:
            self.read_shards.append(shard)
        return super().due_keys(shard, until_ms, after_ms=after_ms, limit=limit)


def test_shards_without_due_rows_are_not_read(engine: Engine, clock: Clock) -> None:
    table = ExactTable(engine.table)
    exact = Engine(table, lambda: clock.now_ms, UNHURRIED)
    assert due_rows.process_due_rows(exact) == due_rows.DueRowCounts()
    assert table.read_shards == []
    pools = late_pools(engine, 2)
    expired = Key("idempotency#me", "k")
    engine.table.commit([Put(expired, 1, b"", Expect.ABSENT, due_ms=NOW_MS, expires=True)])
    counts = due_rows.DueRowCounts(redriven=2, expired=1, late_ms=clock.now_ms)
    assert due_rows.process_due_rows(exact) == counts
    of_work = {number for number in table.read_shards if number in WORK_SHARDS}
    assert of_work == {shard_of(pool) for pool in pools}
    assert shard_of(expired.partition, expires=True) in table.read_shards
    assert all(attempts(engine, pool) == [] for pool in pools)


@pytest.mark.parametrize("is_remembered", [True, False])
def test_later_message_is_no_dead_letter_while_an_earlier_message_waits(
    engine: Engine, clock: Clock, is_remembered: bool
) -> None:
    [pool] = late_pools(engine, 1)
    earlier = mailbox.mail_key(pool, 1, "s")
    key = mailbox.mail_key(pool, 2, "s")
    previous = earlier.sort if is_remembered else mailbox.UNKNOWN
    encoded = [encode_message_for(pool, SlotsRequested(2, 1, 1, "2"))]
    engine.table.commit([mailbox.mail_write(key, "s", previous, 2, encoded, NOW_MS - 1)])
    for _ in range(mailbox.ATTEMPTS_MAX):
        row = engine.table.get(key)
        assert row is not None
        engine.table.commit([mailbox.attempt_write(mailbox.read_mail(row), NOW_MS - 60_000)[1]])
    # The earlier message is due later than the second message.
    row = engine.table.get(earlier)
    assert row is not None
    engine.table.commit([mailbox.postponement(mailbox.read_mail(row), NOW_MS + 60_000)])
    table = RefusingTable(engine.table)
    passing = Engine(table, lambda: clock.now_ms, UNHURRIED)
    counts = due_rows.process_due_rows(passing)
    assert counts.dead == 0
    # Both messages are folded.
    assert engine.read_state(pool).queued == 2
    assert attempts(engine, pool) == []


def test_due_events_are_returned_and_postponed(engine: Engine, clock: Clock) -> None:
    key = Key("events#experiment#1", "0000000000000001")
    later = Key("events#experiment#2", "0000000000000001")
    engine.table.commit(
        (
            Put(key, 1, b"{}", Expect.ABSENT, NOW_MS),
            Put(later, 1, b"{}", Expect.ABSENT, NOW_MS + 1),
        )
    )
    counts = due_rows.process_due_rows(engine)
    assert (counts.events, counts.expired) == (("events#experiment#1",), 0)
    row = engine.table.get(key)
    assert row is not None
    assert (row.body, row.due_ms) == (b"{}", NOW_MS + due_index.HELD_MS)
    assert due_rows.process_due_rows(engine).events == ()
    clock.now_ms += due_index.HELD_MS
    assert set(due_rows.process_due_rows(engine).events) == {key.partition, later.partition}


def test_event_of_a_host_whose_clock_was_ahead_is_found(engine: Engine, clock: Clock) -> None:
    key = Key("events#experiment#1", "0000000000000001")
    due_ms = NOW_MS + 400 * 24 * 3_600_000
    engine.table.commit((Put(key, 1, b"{}", Expect.ABSENT, due_ms),))
    found: set[str] = set()
    for _ in WORK_SHARDS:
        # A pass searches one shard for later rows.
        found.update(due_rows.process_due_rows(engine).events)
        clock.now_ms += 60_000
    assert found == {key.partition}
