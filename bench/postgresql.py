"""Trials a second with the state on PostgreSQL, and kills of two servers with a common state.

The server of PostgreSQL runs on this machine and syncs each commit to the disk.
"""

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from enum import Enum
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any

import psycopg

from bench import peers
from bench.figures import Row, Scale, at_least, at_most, progress, row_without_target
from bench.trials import Load, rate, run_on
from control_plane.engine.engine import Engine
from control_plane.postgres import state_table
from control_plane.postgres.server_link import ServerLink
from control_plane.postgres.state_table import PostgresTable
from control_plane.state.table import Expect, Key, Put
from detcloud.client.handles import Experiment
from tests.emulators.postgresql import Postgresql, postgresql
from tests.emulators.server import free_port
from tests.integration.server_group import Prober, ServerGroup
from tests.patience import poll_until

TIMES_OPTUNA_MIN = 3.0
P99_SECONDS_MAX = 2.0
NOTICES = 200
THREADS = 8
COMMITS = 100
"""The commits of each thread."""
END_SECONDS_MAX = 600.0
UNIT = "trials/s"


class Notice(Enum):
    """When a server sends notices of its commits."""

    NEVER = "never"
    IN_COMMITS = "in commits"
    AFTER_COMMITS = "after commits"


def on_postgresql(scale: Scale) -> Iterator[Row]:
    """Yield the rates on a durable database, the cost and delay of notices, and a group's kills."""
    with (
        TemporaryDirectory(prefix="detcloud-bench-", ignore_cleanup_errors=True) as folder,
        postgresql(Path(folder) / "postgresql.log", is_durable=True) as database,
    ):
        yield from _rates(database, scale)
        yield _notice_cost(database)
        yield _notice_delay(database)
        yield from _kills(Path(folder), database, scale)


def _rates(database: Postgresql, scale: Scale) -> Iterator[Row]:
    """Yield the rates of trials. Optuna runs between two runs of detcloud."""
    load = Load(scale.database_trials, "FULL")
    before = _rate(database, load)
    os.environ[peers.POSTGRESQL_VARIABLE] = _sqlalchemy_url(database)
    with progress(f"Optuna on PostgreSQL, {scale.optuna_trials} trials"):
        peer = peers.measure(peers.ON_POSTGRESQL, scale.optuna_trials)
    ours = mean((before, _rate(database, load)))
    what = f"{load.trials:,} trials on PostgreSQL, every commit synced"
    if peer.rate is None:
        yield row_without_target(what, ours, UNIT, beside=peer.text)
    else:
        text = f"{ours:,.3g} {UNIT}; {peer.name}: {peer.text}"
        yield at_least(f"{what}, times Optuna", ours / peer.rate, TIMES_OPTUNA_MIN, "", beside=text)
    yield row_without_target(f"{load.trials:,} trials on SQLite, synced", rate(load), UNIT)


def _notice_cost(database: Postgresql) -> Row:
    """Return the commits a second of several threads that announce each commit."""
    with progress("commits with and without notices"):
        without, inside, after = (_commit_rate(database, notice) for notice in Notice)
    text = f"{without:,.0f} without notices, {inside:,.0f} with a notice in each commit"
    what = f"commits of {THREADS} threads, notices after commits"
    return row_without_target(what, after, "commits/s", beside=text)


def _commit_rate(database: Postgresql, notice: Notice) -> float:
    """Return the commits a second of THREADS threads, each of two new rows."""
    url = database.new_schema()
    with closing(PostgresTable(url)) as table, _open_link(url, table) as link, _sending(notice):

        def commit_rows(thread: int) -> None:
            for number in range(COMMITS):
                name = f"trial#{thread}-{number}"
                keys = Key(name, "A"), Key(name, "B")
                table.commit([Put(key, 1, bytes(500), Expect.ABSENT) for key in keys])
                if notice is Notice.AFTER_COMMITS:
                    link.announce(name)

        began = time.perf_counter()
        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(commit_rows, range(THREADS)))
        return THREADS * COMMITS / (time.perf_counter() - began)


@contextmanager
def _sending(notice: Notice) -> Iterator[None]:
    """With Notice.IN_COMMITS, let each commit in the block send a notice before its end."""
    plain = state_table._write

    def write(connection: Any, writes: Any) -> None:
        connection.execute("select pg_notify('bench', %s)", (writes[0].key.partition,))
        plain(connection, writes)

    state_table._write = write if notice is Notice.IN_COMMITS else plain
    try:
        yield
    finally:
        state_table._write = plain


class _Sink:
    """A listener that records the time of the last names."""

    def __init__(self) -> None:
        self.is_connected, self.has_names = Event(), Event()

    def on_names(self, names: Any) -> None:
        self.has_names.set()

    def on_gap(self) -> None:
        self.is_connected.set()

    def on_excluded(self) -> None:
        raise AssertionError("the state is in use")


@contextmanager
def _open_link(url: str, table: PostgresTable) -> Iterator[ServerLink]:
    """Yield the link of a server, beside another server that listens."""
    links = [ServerLink(url, table.schema, _Sink()) for _ in range(2)]
    for link in links:
        link.start()
    try:
        yield links[0]
    finally:
        for link in links:
            link.stop()


def _rate(database: Postgresql, load: Load) -> float:
    """Return trials per second on a new schema, with notices to another server."""
    url = database.new_schema()
    with (
        progress(f"{load} on PostgreSQL"),
        closing(PostgresTable(url)) as table,
        _open_link(url, table) as link,
    ):
        engine = Engine(table, lambda: time.time_ns() // 1_000_000)
        engine.on_commit = link.announce
        return load.trials / run_on(engine, load)


def _notice_delay(database: Postgresql) -> Row:
    """Return the delay from an announcement at a server to its effect at another server."""
    url = database.new_schema()
    with closing(PostgresTable(url)) as table:
        sink = _Sink()
        sender, receiver = (
            ServerLink(url, table.schema, _Sink()),
            ServerLink(url, table.schema, sink),
        )
        sender.start()
        receiver.start()
        sink.is_connected.wait(10)
        time.sleep(0.2)
        delays = []
        for number in range(NOTICES):
            sink.has_names.clear()
            began = time.perf_counter()
            sender.announce(f"trial#{number}")
            sink.has_names.wait(5)
            delays.append(1000 * (time.perf_counter() - began))
        sender.stop()
        receiver.stop()
    ordered = sorted(delays)
    beside = f"p99 {ordered[int(0.99 * NOTICES) - 1]:.1f} ms, {NOTICES} notices"
    return row_without_target(
        "notice to another server, median", ordered[NOTICES // 2], "ms", beside=beside
    )


def _kills(folder: Path, database: Postgresql, scale: Scale) -> Iterator[Row]:
    """Kill the servers of a group in turns while an agent of neither server runs short trials."""
    trials = scale.group_trials
    ports = free_port(), free_port()
    kills = 0
    with ServerGroup(folder, database.new_schema(), ports) as group:
        group.start(0)
        group.start(1)
        group.start_agent()
        client = group.client()
        poll_until(lambda: bool(list(client.agents())), 60, "the agent", 0.1)
        experiment = group.submit(client, trials, 0.05)
        with Prober(group.url, group.token) as prober, progress(f"{trials} trials with kills"):
            until = time.monotonic() + END_SECONDS_MAX
            while not _has_ended(experiment, scale.group_kill_seconds):
                if time.monotonic() > until:
                    break
                victim = kills % 2
                group.servers[victim].kill()
                group.start(victim)
                kills += 1
        faults = group.faults(experiment, trials)
    text = f"{kills} kills; {'; '.join(faults) or 'no restart'}"
    yield at_most(f"lost or repeated of {trials} trials", len(faults), 0, "", beside=text)
    ordered = sorted(prober.seconds)
    p99 = ordered[max(0, int(0.99 * len(ordered)) - 1)]
    beside = f"largest {ordered[-1]:.2f} s, {len(ordered)} calls, {len(prober.errors)} failed"
    yield at_most("API call during the kills, p99", p99, P99_SECONDS_MAX, "s", beside=beside)


def _has_ended(experiment: Experiment, seconds: float) -> bool:
    """Wait for the end of an experiment for at most `seconds`. Return whether the search ended."""
    until = time.monotonic() + seconds
    while True:
        experiment.refresh()
        if experiment.has_ended or time.monotonic() > until:
            return experiment.has_ended
        time.sleep(0.2)


def _sqlalchemy_url(database: Postgresql) -> str:
    """Return the URL of a new schema in the form of SQLAlchemy."""
    name = f"optuna{time.time_ns()}"
    with psycopg.connect(database.url(), autocommit=True) as connection:
        connection.execute(f"create schema {name}")
    url = database.url().replace("postgresql:", "postgresql+psycopg:")
    return f"{url}?options=-csearch_path%3D{name}"
