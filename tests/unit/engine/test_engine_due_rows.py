"""Passes over the due index on a table that refuses some of it."""

from collections.abc import Sequence

import pytest

from control_plane.actors.messages.pool import PoolConfigured, SlotsRequested
from control_plane.engine import due_rows, mailbox
from control_plane.engine.actor_types import encode_message_for
from control_plane.engine.engine import Engine
from control_plane.engine.head import HEAD
from control_plane.state.faults import TableDecorator
from control_plane.state.memory import MemoryTable
from control_plane.state.table import StateTable, Unavailable, Write, shard_of

NOW_MS = 1_700_000_000_000


class Clock:
    now_ms = NOW_MS


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def engine(clock: Clock) -> Engine:
    return Engine(MemoryTable(), lambda: clock.now_ms)


class RefusingTable(TableDecorator):
    """A table that lets attempts be counted and none of some actors be advanced, while it is
    `busy`.
    """

    busy = True

    def __init__(self, table: StateTable, *pools: str) -> None:
        super().__init__(table)
        self.pools = pools
        self.refused: list[str] = []

    def commit(self, writes: Sequence[Write]) -> None:
        heads = [it.key.partition for it in writes if it.key.sort == HEAD]
        refused = [it for it in heads if self.busy and it in self.pools]
        self.refused += refused
        if refused:
            raise Unavailable("throttled")
        super().commit(writes)


def late_pools(engine: Engine, number: int) -> list[str]:
    """Pools of which each has one late message, in the order in which a pass finds them."""
    names = [f"p{n}" for n in range(number)]
    pools = [f"pool#{name}" for name in names]
    for name, pool in zip(names, pools, strict=True):
        engine.execute_command(pool, PoolConfigured(name))
        key = mailbox.mail_key(pool, 1, "s")
        encoded = [encode_message_for(pool, SlotsRequested(1, 1, 1, "1"))]
        engine.table.commit([mailbox.mail_write(key, "s", mailbox.FIRST, 1, encoded, NOW_MS)])
    return sorted(pools, key=shard_of)


def attempts(engine: Engine, pool: str) -> list[int]:
    """The attempts of the mail that the pool still has."""
    rows = engine.table.query(pool, mailbox.MAIL, mailbox.MAIL_END).rows
    return [mailbox.read_mail(row).attempts for row in rows]


def test_attempts_that_the_table_did_not_allow_bury_nothing(engine: Engine, clock: Clock) -> None:
    [pool] = late_pools(engine, 1)
    table = RefusingTable(engine.table, pool)
    throttled = Engine(table, lambda: clock.now_ms)
    for _ in range(3 * mailbox.ATTEMPTS_MAX):
        clock.now_ms += 60_000
        with pytest.raises(Unavailable):
            due_rows.process_due_rows(throttled)
        assert attempts(engine, pool) == [0]
    table.busy = False
    clock.now_ms += 60_000
    assert due_rows.process_due_rows(throttled) == due_rows.DueRowCounts(redriven=1)
    assert attempts(engine, pool) == []


def test_an_actor_that_the_table_refuses_holds_up_no_other(engine: Engine, clock: Clock) -> None:
    first, second = late_pools(engine, 2)
    table = RefusingTable(engine.table, first)
    throttled = Engine(table, lambda: clock.now_ms)
    with pytest.raises(Unavailable, match="throttled"):
        due_rows.process_due_rows(throttled)
    assert throttled.read_state(first).queued == 0
    assert throttled.read_state(second).queued == 1
    assert attempts(engine, first) == [0]


def test_a_table_that_does_not_answer_at_all_is_not_asked_for_everybody(
    engine: Engine, clock: Clock
) -> None:
    pools = late_pools(engine, 2 * due_rows.CONSECUTIVE_FAILURES_MAX)
    table = RefusingTable(engine.table, *pools)
    with pytest.raises(Unavailable):
        due_rows.process_due_rows(Engine(table, lambda: clock.now_ms))
    assert sorted(set(table.refused), key=shard_of) == pools[: due_rows.CONSECUTIVE_FAILURES_MAX]


def test_refusals_between_successes_are_of_single_actors(engine: Engine, clock: Clock) -> None:
    pools = late_pools(engine, 2 * due_rows.CONSECUTIVE_FAILURES_MAX)
    table = RefusingTable(engine.table, *pools[::2])
    throttled = Engine(table, lambda: clock.now_ms)
    with pytest.raises(Unavailable):
        due_rows.process_due_rows(throttled)
    assert [throttled.read_state(pool).queued for pool in pools] == [
        0,
        1,
    ] * due_rows.CONSECUTIVE_FAILURES_MAX
