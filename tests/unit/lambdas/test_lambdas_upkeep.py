"""The upkeep of a cluster whose table refuses one of the pools."""

from collections.abc import Callable
from typing import Any

import pytest

from control_plane.actors.messages.pool import PoolConfigured
from control_plane.engine.engine import Engine
from control_plane.state.memory import MemoryTable
from control_plane.state.table import Key, Page, Row, Unavailable
from lambdas.upkeep import Upkeep
from provisioner.pools import PoolsFailed
from tests.engine_timing import UNHURRIED


class ThrottledTable(MemoryTable):
    """Notes which partitions are read, and refuses those of the pool `hot`."""

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
    [Upkeep.mark_lost_agents, Upkeep.forget_lost_agents, Upkeep.audit_pools, Upkeep.check_budgets],
)
def test_a_pool_that_the_table_refuses_holds_up_no_other(look: Callable[[Upkeep], None]) -> None:
    table = ThrottledTable()
    engine = Engine(table, lambda: 1_000, UNHURRIED)
    for pool in ("a", "b", "c"):
        engine.execute_command(f"pool#{pool}", PoolConfigured(pool))
    table.read.clear()
    table.hot = "b"
    with pytest.raises(PoolsFailed, match=r"^pools that failed: b$"):
        look(Upkeep(engine))
    assert any(partition.endswith("#c") for partition in table.read)
