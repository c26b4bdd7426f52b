"""Passes over the due index on a host that dies of some of the mail."""

from collections.abc import Sequence

import pytest

from control_plane.actors.messages.pool import PoolConfigured, SlotsRequested
from control_plane.engine import due_rows, mailbox
from control_plane.engine.actor_types import encode_message_for
from control_plane.engine.engine import Engine
from control_plane.state.faults import Crash, TableDecorator
from control_plane.state.memory import MemoryTable
from control_plane.state.table import Delete, StateTable, Write
from tests.engine_timing import UNHURRIED
from tests.unit.engine.late_mail import NOW_MS, attempts, mail_for

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


class CrashingTable(TableDecorator):
    """A table whose host has no memory for a fold of several rows of mail which these are among."""

    def __init__(self, table: StateTable, too_much: set[str]) -> None:
        super().__init__(table)
        self.too_much = too_much

    def commit(self, writes: Sequence[Write]) -> None:
        if (
            len(self.too_much.intersection(write.key.sort for write in writes if is_removal(write)))
            > 1
        ):
            raise Crash("out of memory")
        self.table.commit(writes)


def is_removal(write: Write) -> bool:
    return isinstance(write, Delete) and write.key.sort.startswith(mailbox.MAIL)


@pytest.mark.parametrize("is_timer", [False, True])
def test_no_row_is_blamed_for_rows_before_it_that_are_due_later(
    is_timer: bool,
) -> None:
    """A host whose clock was ahead has tried the first two, which are too much together."""
    pool, now_ms = "pool#p0", NOW_MS
    engine = Engine(MemoryTable(), lambda: now_ms, UNHURRIED)
    engine.execute_command(pool, PoolConfigured("p0"))
    for number in (1, 2):
        mail_for(engine, pool, number, attempts=1, due_ms=NOW_MS + HOUR_MS)
    poisoned = {mailbox.mail_key(pool, name, f"trial#{name}").sort for name in (1, 2)}
    if is_timer:
        timer = encode_message_for(pool, SlotsRequested(3, 1, 1, "000003"))
        engine.table.commit([mailbox.timer_write(pool, NOW_MS, 3, timer, NOW_MS)])
    else:
        mail_for(engine, pool, 3)
    host = Engine(CrashingTable(engine.table, poisoned), lambda: now_ms, UNHURRIED)
    crashes = 0
    for _ in range(3 * mailbox.ATTEMPTS_MAX):
        now_ms += MINUTE_MS
        try:
            assert due_rows.process_due_rows(host).dead == 0
        except Crash:
            crashes += 1
    # The row that is due has so many attempts before the first one gets its second and third.
    assert crashes == mailbox.ISOLATE_FROM_ATTEMPTS + 1
    assert engine.read_state(pool).queued == 3
    assert attempts(engine, pool) == []
