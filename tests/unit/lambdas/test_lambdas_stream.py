"""What the function behind the table's stream does with its records."""

from collections.abc import Sequence
from typing import Any

import pytest

from control_plane.actors import addresses
from control_plane.actors.pool_messages import PoolConfigured
from control_plane.dispatch.engine import Engine
from control_plane.state.memory import MemoryTable
from control_plane.state.table import Page, Unavailable
from lambdas.stream import RESERVE_MS, serve

POOL = addresses.pool("gpus")


class Counted(MemoryTable):
    """A table that counts the queries of each partition, and does not answer those of `away`."""

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
def table() -> Counted:
    return Counted()


@pytest.fixture
def engine(table: Counted) -> Engine:
    return Engine(table, lambda: 1_000)


def record(number: int, address: str, sort: str = "M#1#a") -> dict[str, Any]:
    keys = {"p": {"S": address}, "s": {"S": sort}}
    return {"dynamodb": {"SequenceNumber": f"{number}", "Keys": keys}}


def served(engine: Engine, records: Sequence[Any], left_ms: int = 60_000) -> list[str]:
    answer = serve(engine, records, lambda: left_ms).answer()
    return [it["itemIdentifier"] for it in answer["batchItemFailures"]]


def test_an_actor_whose_mail_was_consumed_costs_one_read(engine: Engine, table: Counted) -> None:
    engine.command(POOL, PoolConfigured("gpus"))
    table.queries.clear()
    assert served(engine, [record(n, POOL) for n in range(50)]) == []
    assert table.queries == [POOL]


def test_mail_that_nobody_followed_is_folded(engine: Engine, table: Counted) -> None:
    quiet = Engine(table, lambda: 1_000)
    quiet.follow = lambda *_, **__: None  # type: ignore[method-assign]
    quiet.post(POOL, PoolConfigured("gpus"), sender="somebody")
    assert engine.state(POOL) is None
    assert served(engine, [record(1, POOL)]) == []
    assert engine.state(POOL) is not None


def test_records_of_an_actor_that_could_not_be_served_come_again(
    engine: Engine, table: Counted
) -> None:
    table.away = "trial#2"
    records = [record(1, "trial#1"), record(2, "trial#2"), record(3, "trial#2"), record(4, POOL)]
    assert served(engine, records) == ["2", "3"]


def test_a_record_that_names_no_row_fails_alone(engine: Engine) -> None:
    broken = {"dynamodb": {"SequenceNumber": "2", "Keys": {"p": {"N": "1"}}}}
    assert served(engine, [record(1, POOL), broken, record(3, POOL)]) == ["2"]


def test_what_the_time_does_not_allow_comes_again(engine: Engine, table: Counted) -> None:
    assert served(engine, [record(1, POOL)], left_ms=RESERVE_MS) == ["1"]
    assert table.queries == []
