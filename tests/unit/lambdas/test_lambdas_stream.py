"""The function behind the table's stream, and the stream's records."""

from collections.abc import Sequence
from typing import Any

import pytest

from control_plane.actors import addresses
from control_plane.actors.messages.pool import PoolConfigured
from control_plane.engine.engine import Engine
from control_plane.state.memory import MemoryTable
from control_plane.state.table import Page, Unavailable
from lambdas.aws.stream import advance_receivers
from lambdas.clock import RESERVE_MS
from tests.engine_timing import UNHURRIED

POOL = addresses.pool("gpus")


class CountingTable(MemoryTable):
    """A table that records the partitions of queries and refuses the partition `away`."""

    def __init__(self) -> None:
        super().__init__()
        self.queries: list[str] = []
        self.away = ""

    def query(self, partition: str, first: str, last: str, **options: Any) -> Page:
        self.queries.append(partition)
        if partition == self.away:
            raise Unavailable("throttled")
        return super().query(partition, first, last, **options)


@pytest.fixture
def table() -> CountingTable:
    return CountingTable()


@pytest.fixture
def engine(table: CountingTable) -> Engine:
    return Engine(table, lambda: 1_000, UNHURRIED)


def record(number: int, address: str, sort: str = "M#1#a") -> dict[str, Any]:
    keys = {"p": {"S": address}, "s": {"S": sort}}
    return {"dynamodb": {"SequenceNumber": f"{number}", "Keys": keys}}


def failed_records(engine: Engine, records: Sequence[Any], left_ms: int = 60_000) -> list[str]:
    answer = advance_receivers(engine, records, lambda: left_ms).answer()
    return [
        batch_item_failure["itemIdentifier"] for batch_item_failure in answer["batchItemFailures"]
    ]


def test_actor_without_mail_costs_a_single_read(engine: Engine, table: CountingTable) -> None:
    engine.execute_command(POOL, PoolConfigured("gpus"))
    table.queries.clear()
    assert failed_records(engine, [record(n, POOL) for n in range(50)]) == []
    assert table.queries == [POOL]


def test_unfollowed_mail_is_folded(engine: Engine, table: CountingTable) -> None:
    quiet = Engine(table, lambda: 1_000, UNHURRIED)
    quiet.advance_until_idle = lambda *_, **__: None  # type: ignore[method-assign]
    quiet.post_message(POOL, PoolConfigured("gpus"), sender="somebody")
    assert engine.read_state(POOL) is None
    assert failed_records(engine, [record(1, POOL)]) == []
    assert engine.read_state(POOL) is not None


def test_records_of_an_unserved_actor_fail(engine: Engine, table: CountingTable) -> None:
    table.away = "trial#2"
    records = [record(1, "trial#1"), record(2, "trial#2"), record(3, "trial#2"), record(4, POOL)]
    assert failed_records(engine, records) == ["2", "3"]


def test_record_without_a_row_fails_alone(engine: Engine) -> None:
    broken = {"dynamodb": {"SequenceNumber": "2", "Keys": {"p": {"N": "1"}}}}
    assert failed_records(engine, [record(1, POOL), broken, record(3, POOL)]) == ["2"]


def test_records_fail_without_enough_time(engine: Engine, table: CountingTable) -> None:
    assert failed_records(engine, [record(1, POOL)], left_ms=RESERVE_MS) == ["1"]
    assert table.queries == []
