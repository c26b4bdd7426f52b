"""Passes over the due index on a host that crashes on some mail."""

from collections.abc import Sequence

import pytest

from control_plane.actors.messages.pool import PoolConfigured, SlotsRequested
from control_plane.engine import due_rows, mailbox
from control_plane.engine.actor_types import encode_message_for
from control_plane.engine.engine import Engine
from control_plane.state.memory import MemoryTable
from control_plane.state.table import Delete, StateTable, Write
from simulator.faults.table_faults import Crash, TableDecorator
from tests.engine_timing import UNHURRIED
from tests.unit.engine.late_mail import NOW_MS, attempts, mail_for

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


class CrashingTable(TableDecorator):
    """A table with a host that crashes when a commit removes several poisoned rows."""

    def __init__(self, table: StateTable, poisoned_sorts: set[str]) -> None:
        super().__init__(table)
        self.poisoned_sorts = poisoned_sorts

    def commit(self, writes: Sequence[Write]) -> None:
        if (
            len(
                self.poisoned_sorts.intersection(
                    write.key.sort for write in writes if is_removal(write)
                )
            )
            > 1
        ):
            raise Crash("out of memory")
        self.table.commit(writes)


def is_removal(write: Write) -> bool:
    return isinstance(write, Delete) and write.key.sort.startswith(mailbox.MAIL)


@pytest.mark.parametrize("is_timer", [False, True])
def test_attempts_are_counted_in_the_first_row_of_the_mailbox(
    is_timer: bool,
) -> None:
    """A host with a clock that was ahead has tried the first two rows, which are due later.

    Folding both rows together crashes the process.
    """
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
    # The due row gets ISOLATE_FROM_ATTEMPTS attempts. Then the second attempt of the first row
    # crashes too, and the third attempt folds the first row alone.
    assert crashes == mailbox.ISOLATE_FROM_ATTEMPTS + 1
    assert engine.read_state(pool).queued == 3
    assert attempts(engine, pool) == []
