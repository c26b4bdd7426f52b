"""The suite of state tables, for each table."""

import multiprocessing
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import pytest
import urllib3

from control_plane.aws.state_table import DynamoDbTable, table_definition
from control_plane.gcp.state_table import FirestoreTable
from control_plane.postgres.state_table import PostgresTable
from control_plane.state.memory import MemoryTable
from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import Delete, Expect, Put, StateTable
from simulator.faults.faulty_table import FlakyTable
from simulator.faults.table_faults import CrashingTable
from tests.conformance.state_table import (
    INCREMENTS,
    KEY,
    OTHER,
    THREADS,
    Reopen,
    StateTableContract,
    increment,
)
from tests.emulators.firestore import Firestore
from tests.emulators.firestore_checks import CheckRefusingPool
from tests.emulators.ministack import Ministack
from tests.emulators.postgresql import Postgresql
from tests.patience import PROCESS_SECONDS_MAX

PROCESSES = 2
OpenTable = Callable[[], SqliteTable | PostgresTable]


class TestSqliteTable(StateTableContract):
    """Rows in a file; a second process would reopen the file."""

    @pytest.fixture
    def reopen(self, tmp_path: Path) -> Iterator[Reopen]:
        with ExitStack() as opened:
            yield lambda: opened.enter_context(
                closing(SqliteTable(tmp_path / "table.db", synchronous="NORMAL"))
            )

    @pytest.fixture
    def table(self, reopen: Reopen) -> StateTable:
        return reopen()

    def test_processes_and_threads_count_exactly(self, table: StateTable, tmp_path: Path) -> None:
        table.commit([Put(KEY, 1, b"0", Expect.ABSENT)])
        _count_in_processes(partial(SqliteTable, tmp_path / "table.db", synchronous="NORMAL"))
        row = table.get(KEY)
        assert row is not None
        # 2 processes x 8 threads x 10 increments, from revision 1.
        assert (row.revision, row.body) == (161, b"160")


class TestSqliteTableReopened(TestSqliteTable):
    """A file that was written, closed and opened again."""

    @pytest.fixture
    def table(self, reopen: Reopen, tmp_path: Path) -> StateTable:
        with closing(SqliteTable(tmp_path / "table.db")) as earlier:
            earlier.commit([Put(KEY._replace(partition="earlier"), 1, b"", Expect.ABSENT)])
        return reopen()


class TestFaultsThatNeverStrike(TestSqliteTable):
    """Decorators of tables, which are tables themselves."""

    @pytest.fixture
    def table(self, reopen: Reopen) -> StateTable:
        return CrashingTable(FlakyTable(reopen(), seed=1, share=0))


class TestMemoryTable(StateTableContract):
    """Rows in memory; reopening returns this table."""

    @pytest.fixture
    def table(self) -> StateTable:
        return MemoryTable()

    @pytest.fixture
    def reopen(self, table: StateTable) -> Reopen:
        return lambda: table


class TestMemoryTableSnapshot(TestMemoryTable):
    """A snapshot, which is independent of the original table."""

    @pytest.fixture
    def table(self) -> StateTable:
        earlier = MemoryTable()
        earlier.commit([Put(OTHER, 1, b"earlier", Expect.ABSENT, due_ms=1)])
        copy = earlier.snapshot()
        earlier.commit([Put(KEY, 1, b"later", Expect.ABSENT, due_ms=1)])
        copy.commit([Delete(OTHER, 1)])
        assert earlier.get(OTHER) is not None
        return copy


class TestPostgresTable(StateTableContract):
    """A table of PostgreSQL; each test has a separate schema."""

    @pytest.fixture
    def reopen(self, postgres: Postgresql) -> Iterator[Reopen]:
        url = postgres.new_schema()
        with ExitStack() as opened:
            yield lambda: opened.enter_context(closing(PostgresTable(url, connections_max=4)))

    @pytest.fixture
    def table(self, reopen: Reopen) -> StateTable:
        return reopen()

    def test_processes_and_threads_count_exactly(self, postgres: Postgresql) -> None:
        url = postgres.new_schema()
        with closing(PostgresTable(url)) as table:
            table.commit([Put(KEY, 1, b"0", Expect.ABSENT)])
            _count_in_processes(partial(PostgresTable, url))
            row = table.get(KEY)
        assert row is not None
        assert (row.revision, row.body) == (161, b"160")


class TestDynamoTable(StateTableContract):
    """A table of DynamoDB; each test has a separate table."""

    @pytest.fixture
    def reopen(self, aws: Ministack) -> Reopen:
        name = f"table-{uuid.uuid4().hex}"
        aws.client("dynamodb").create_table(**table_definition(name))
        return lambda: DynamoDbTable(aws.client("dynamodb"), name)

    @pytest.fixture
    def table(self, reopen: Reopen) -> StateTable:
        return reopen()


class TestFirestoreTable(StateTableContract):
    """A database of Firestore; each test has a separate database."""

    @pytest.fixture
    def reopen(self, firestore: Firestore) -> Reopen:
        database = firestore.new_database()
        return lambda: FirestoreTable(firestore.client(database))

    @pytest.fixture
    def table(self, reopen: Reopen) -> StateTable:
        return reopen()


class TestFirestoreTableWithoutCheckWrites(StateTableContract):
    """A database of Firestore that refuses checks as writes without effect."""

    @pytest.fixture
    def reopen(self, firestore: Firestore) -> Reopen:
        database = firestore.new_database()
        pool = cast("urllib3.PoolManager", CheckRefusingPool(firestore.pool))
        refusing = replace(firestore, pool=pool)
        return lambda: FirestoreTable(refusing.client(database))

    @pytest.fixture
    def table(self, reopen: Reopen) -> StateTable:
        return reopen()


def _count_in_processes(open_table: OpenTable) -> None:
    """Let processes with several threads increment the counter of KEY."""
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=_count, args=(open_table,)) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(PROCESS_SECONDS_MAX)
        assert process.exitcode == 0


def _count(open_table: OpenTable) -> None:
    with ExitStack() as opened, ThreadPoolExecutor(THREADS) as threads:
        tables = [opened.enter_context(closing(open_table())) for _ in range(THREADS)]
        list(threads.map(increment, tables, [INCREMENTS] * THREADS))
