"""The maintenance of pools when the table refuses a pool or agents cannot reach the API."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from control_plane.actors.job_row import POOLS
from control_plane.actors.messages.pool import PoolConfigured
from control_plane.agents.failed_syncs import (
    FAILED_SYNC,
    RECENT_MS,
    FailedSyncs,
    has_failed_recently,
)
from control_plane.engine.engine import Engine
from control_plane.state.memory import MemoryTable
from control_plane.state.table import Expect, Key, Page, Put, Row, Unavailable
from lambdas.maintenance import Maintenance
from provisioner.pools import PoolsFailed
from tests.engine_timing import UNHURRIED


class ThrottledTable(MemoryTable):
    """A table that records read partitions and refuses the partitions of the pool `hot`."""

    hot = ""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []

    def get(self, key: Key) -> Row | None:
        self._note(key.partition)
        return super().get(key)

    def query(self, partition: str, first: str, last: str, **options: Any) -> Page:
        self._note(partition)
        return super().query(partition, first, last, **options)

    def _note(self, partition: str) -> None:
        self.read.append(partition)
        if self.hot and partition.endswith(f"#{self.hot}"):
            raise Unavailable("throttled")


@pytest.mark.parametrize(
    "look",
    [
        Maintenance.mark_lost_agents,
        Maintenance.forget_lost_agents,
        Maintenance.audit_pools,
        Maintenance.check_budgets,
        Maintenance.sum_usage,
    ],
)
def test_failed_pool_does_not_stop_the_maintenance_of_pools(
    look: Callable[[Maintenance], None],
) -> None:
    table = ThrottledTable()
    engine = Engine(table, lambda: 1_000, UNHURRIED)
    for pool in ("a", "b", "c"):
        engine.execute_command(f"pool#{pool}", PoolConfigured(pool))
    table.read.clear()
    table.hot = "b"
    with pytest.raises(PoolsFailed, match=r"^pools that failed: b$"):
        look(Maintenance(engine))
    assert any(partition.endswith("#c") for partition in table.read)


def test_maintains_pools_of_all_pages() -> None:
    table = MemoryTable()
    names = [f"pool-{number:04d}" for number in range(1_001)]
    for start in range(0, len(names), 50):
        chunk = names[start : start + 50]
        table.commit(tuple(Put(Key(POOLS, name), 1, b"", Expect.ABSENT) for name in chunk))
    assert Maintenance(Engine(table, lambda: 1_000, UNHURRIED)).pools() == names


def test_timers_wait_while_agents_cannot_reach_the_api(caplog: pytest.LogCaptureFixture) -> None:
    """A trial without the directive to stop is not overdue."""
    now_ms, down = 1_000_000, [True]
    engine = Engine(MemoryTable(), lambda: now_ms, UNHURRIED)
    engine.execute_command("pool#a", PoolConfigured("a"))
    body = json.dumps({"epoch": 1, "renewed_ms": now_ms, "lost": False}).encode()
    engine.table.commit((Put(Key("leases#a", "agent"), 1, body, Expect.ABSENT),))
    maintenance = Maintenance(engine, lambda: down[0])
    holds = []
    # The agent renewed its lease just now. Then the API is down, and later up again.
    for is_down in (True, True, True, False, False):
        down[0] = is_down
        maintenance.mark_lost_agents()
        holds.append(maintenance.holds_for_outage)
        now_ms += 60_000
    assert holds == [False, True, True, True, False]
    assert [record.message for record in caplog.records] == ["agent agent was lost"]


def test_failed_syncs_are_an_outage_if_no_agent_is_served() -> None:
    now_ms = 1_000_000
    engine = Engine(MemoryTable(), lambda: now_ms, UNHURRIED)
    engine.execute_command("pool#a", PoolConfigured("a"))
    for agent, age_ms in (("a", 31_000), ("b", 0)):
        body = json.dumps({"epoch": 1, "renewed_ms": now_ms - age_ms, "lost": False}).encode()
        engine.table.commit((Put(Key("leases#a", agent), 1, body, Expect.ABSENT),))
    failed = FailedSyncs(engine.table)
    failed.record(now_ms)
    maintenance = Maintenance(engine)
    # The API serves the second agent, so that the failure concerns only the first.
    maintenance.mark_lost_agents()
    assert not maintenance.holds_for_outage
    now_ms += 45_000
    failed.record(now_ms)
    maintenance.mark_lost_agents()
    assert maintenance.holds_for_outage


def test_failed_syncs_share_a_row_write() -> None:
    table = MemoryTable()
    failed = FailedSyncs(table)
    for now_ms in (100_000, 105_000, 109_999):
        failed.record(now_ms)
    row = table.get(FAILED_SYNC)
    assert row is not None
    assert json.loads(row.body) == {"failed_ms": 100_000}
    assert has_failed_recently(table, 100_000 + RECENT_MS)
    assert not has_failed_recently(table, 100_001 + RECENT_MS)
