"""The table of PostgreSQL when connections end, locks are held and statistics are missing."""

import os
import threading
from collections.abc import Callable
from contextlib import closing

import psycopg
import pytest

from control_plane.postgres import state_table
from control_plane.postgres.state_table import PostgresTable
from control_plane.state.table import Check, Conflict, Expect, Key, Put, Unavailable
from tests.emulators.cutting_proxy import cutting_proxy
from tests.emulators.postgresql import Postgresql
from tests.patience import ANSWER_SECONDS_MAX

COUNTER = Key("trial#1", "A")
INCREMENTS = 3
# The gate cuts every fifth request, `make nightly` every request.
STRIDE = 1 if os.environ.get("CRASH_STRIDE") == "1" else 5


def increment_counter(table: PostgresTable) -> None:
    """Increment the counter INCREMENTS times, each time with a row that proves the increment.

    After a lost connection, the row shows whether the increment was committed.
    """
    for n in range(INCREMENTS):
        proof = Key("proof", f"{n}")
        while True:
            try:
                if table.get(proof) is not None:
                    break
                row = table.get(COUNTER)
                revision = 0 if row is None else row.revision
                expect = Expect.ABSENT if row is None else revision
                table.commit(
                    [
                        Put(COUNTER, revision + 1, b"", expect),
                        Put(proof, 1, b"", Expect.ABSENT),
                        Check(Key("trial#1", "absent"), Expect.ABSENT),
                    ]
                )
            except Unavailable:
                continue


def open_table(url: str) -> PostgresTable:
    return PostgresTable(url, connections_max=1, sleep=lambda _: None)


def url_at_port(url: str, port: int, to: int) -> str:
    return url.replace(f":{port}/", f":{to}/")


@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
def test_connection_cut_at_any_request_keeps_commits_exact(
    postgres: Postgresql, is_after: bool, coverage_line: Callable[[str], None]
) -> None:
    with cutting_proxy(postgres.port) as proxy:
        url = url_at_port(postgres.new_schema(), postgres.port, proxy.port)
        with closing(PostgresTable(url, connections_max=1)) as table:
            increment_counter(table)
    requests = proxy.requests
    # The last requests close connections, and their number varies.
    for n in range(1, requests, STRIDE):
        direct = postgres.new_schema()
        with cutting_proxy(postgres.port) as proxy:
            proxy.cut_at, proxy.is_after = n, is_after
            url = url_at_port(direct, postgres.port, proxy.port)
            try:
                table = open_table(url)
            except Unavailable:
                table = open_table(url)
            with closing(table):
                increment_counter(table)
        with closing(PostgresTable(direct, connections_max=1)) as table:
            row = table.get(COUNTER)
            assert row is not None
            assert row.revision == INCREMENTS, f"request {n}"
    coverage_line(
        f"PostgreSQL: every {STRIDE}. of {requests} requests cut"
        f" {'after the answer' if is_after else 'before'}"
    )


def test_read_after_all_connections_ended_succeeds(postgres: Postgresql) -> None:
    url = postgres.new_schema()
    with closing(PostgresTable(url)) as table, psycopg.connect(postgres.url()) as other:
        table.commit([Put(COUNTER, 1, b"body", Expect.ABSENT)])
        other.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid()"
            " and backend_type = 'client backend'"
        )
        row = table.get(COUNTER)
        assert row is not None
        table.commit([Put(COUNTER, 2, b"later", 1)])


def test_stopped_server_makes_the_table_unavailable() -> None:
    with pytest.raises(Unavailable, match="refused"):
        PostgresTable("postgresql://nobody@127.0.0.1:9/none")


def test_checks_of_missing_rows_exclude_writers_of_these_rows(postgres: Postgresql) -> None:
    one, other = Key("pair", "one"), Key("pair", "other")
    with closing(PostgresTable(postgres.new_schema())) as table:
        for n in range(50):
            a, b = (key._replace(partition=f"pair {n}") for key in (one, other))
            results: list[bool] = []
            gate = threading.Barrier(2)

            def write_alone(
                mine: Key,
                theirs: Key,
                gate: threading.Barrier = gate,
                results: list[bool] = results,
            ) -> None:
                gate.wait(ANSWER_SECONDS_MAX)
                try:
                    table.commit([Put(mine, 1, b"", Expect.ABSENT), Check(theirs, Expect.ABSENT)])
                except Conflict:
                    results.append(False)
                else:
                    results.append(True)

            threads = [threading.Thread(target=write_alone, args=p) for p in ((a, b), (b, a))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(ANSWER_SECONDS_MAX)
            assert sorted(results) == [False, True]


def test_lock_held_too_long_makes_a_commit_unavailable(
    postgres: Postgresql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_table, "WAIT_SECONDS_MAX", 0.2)
    url = postgres.new_schema()
    with closing(PostgresTable(url)) as table, psycopg.connect(url) as holder:
        state_table._lock_and_read(holder, url[-33:], [Put(COUNTER, 1, b"", Expect.ABSENT)])
        with pytest.raises(Unavailable, match="lock timeout"):
            table.commit([Put(COUNTER, 1, b"", Expect.ABSENT)])
        holder.rollback()
        table.commit([Put(COUNTER, 1, b"", Expect.ABSENT)])


def test_reads_use_an_index_of_a_new_table(postgres: Postgresql) -> None:
    url = postgres.new_schema()
    with closing(PostgresTable(url)) as table:
        for n in range(20):
            table.commit(
                [Put(Key(f"p{n}", f"{m}"), 1, b"x", Expect.ABSENT, due_ms=m) for m in range(100)]
            )
    digest = state_table._digest("p1")
    reads = (
        (state_table._GET, ([digest], [b"1"])),
        (state_table._READ_REVISIONS, ([digest], [b"1"])),
        (state_table._QUERY + " limit %s", (digest, b"1", b"2", 10)),
        (state_table._DUE_KEYS, (1, 0, 10, 10)),
    )
    with psycopg.connect(url) as connection:
        for statement, values in reads:
            plan = connection.execute(f"explain {statement}", values).fetchall()
            assert "Seq Scan on detcloud_rows" not in str(plan), statement
