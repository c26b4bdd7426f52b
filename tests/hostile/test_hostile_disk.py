"""A full or broken disk under a cluster.

Commands are answered `unavailable` with the reason, without partial effects, and succeed when space
is free.
"""

from __future__ import annotations

import errno
import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest

from control_plane.access.principals import Role
from control_plane.agents.logs import SMALL_BYTES_MAX
from control_plane.api.app import create_app
from control_plane.engine import due_rows
from control_plane.objects.directory import DirectoryObjectStore
from control_plane.objects.store import ObjectKey
from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import Conflict, Expect, Key, Put, Unavailable
from tests.simulation.mailed_messages import everything_mailed
from tests.unit.api.agent_side import CONFIG, Agent, metrics
from tests.unit.api.cluster import TOKENS, V1, Cluster, archive, build_cluster
from tests.unit.api.exchange import Answer, call
from tests.unit.api.table_decorators import RefusingTable
from tests.unit.rows.undeclared_rows import DeclaredRowsTable
from tests.unit.state.sqlite_disk import Disk

Room = Callable[[bool], None]


@pytest.fixture
def disk() -> Disk[sqlite3.Connection]:
    return Disk(sqlite3.Connection)


@pytest.fixture
def cluster(tmp_path: Path, disk: Disk[sqlite3.Connection]) -> Cluster:
    table = DeclaredRowsTable(tmp_path / "state.db", synchronous="NORMAL", connect=disk.connect)
    return build_cluster(tmp_path / "cluster", table=table)


@pytest.fixture
def room(cluster: Cluster, disk: Disk[sqlite3.Connection]) -> Iterator[Room]:
    """Yield a function that removes the space for the state table, or restores the space."""
    db = disk.connections[0]
    pages = db.execute("pragma page_count").fetchone()[0]

    def set_room(room: bool) -> None:
        db.execute(f"pragma max_page_count={pages * 1000 if room else 1}")

    yield set_room
    set_room(True)


def rows_of(disk: Disk[sqlite3.Connection]) -> list[Any]:
    statement = "select * from rows order by partition, sort"
    return disk.connections[0].execute(statement).fetchall()


def full(answer: Answer) -> bool:
    message = answer.json["error"]["message"]
    return (answer.status, answer.code) == (503, "unavailable") and "disk is full" in message


def fill_free_pages(cluster: Cluster) -> None:
    """Use up free space within the file's pages, so that the next commit needs a new page."""
    table = cluster.services.table
    n = 0
    for size in (3000, 300, 30, 3):
        with suppress(Unavailable):
            while True:
                key = Key("idempotency#filler", f"I#{n}")
                table.commit((Put(key, 1, b"x" * size, Expect.ABSENT),))
                n += 1


def test_command_without_disk_space_is_unavailable_and_has_no_effect(
    cluster: Cluster, room: Room, disk: Disk[sqlite3.Connection]
) -> None:
    code = cluster.store_code()
    body = {"config": CONFIG, "model_code": code}
    room(False)
    fill_free_pages(cluster)
    before = rows_of(disk)
    assert full(cluster.post("/experiments", body, "key-1"))
    assert rows_of(disk) == before
    assert cluster.get("/experiments").json["items"] == []
    room(True)
    made = cluster.post("/experiments", body, "key-1")
    assert (made.status, made.json["id"]) == (201, 1)
    assert cluster.post("/experiments", body, "key-1").json["id"] == 1
    assert len(cluster.get("/experiments").json["items"]) == 1


def test_commands_without_disk_space_change_no_rows(
    cluster: Cluster, room: Room, disk: Disk[sqlite3.Connection]
) -> None:
    assert cluster.create(CONFIG).status == 201
    Agent(cluster).take_work()
    room(False)
    fill_free_pages(cluster)
    before = rows_of(disk)
    token = TOKENS[Role.ADMIN]
    for method, path, content in [
        ("POST", "/experiments/1/pause", None),
        ("POST", "/experiments/1/kill", None),
        ("PATCH", "/experiments/1", {"name": "x" * 900, "description": "y" * 9000}),
        ("POST", "/trials/1/kill", None),
        ("POST", "/agents/node/disable", None),
        ("POST", "/tokens", {"description": "z" * 200}),
        ("PUT", "/templates/t", {"config": "description: " + "x" * 9000}),
    ]:
        headers = [("idempotency-key", f"{method}{path}")]
        for _ in range(2):
            answer = call(
                cluster.app, method, V1 + path, content=content, headers=headers, token=token
            )
            assert answer.status in (200, 201, 503), (path, answer.body)
            if answer.status == 503:
                assert full(answer), path
                assert rows_of(disk) == before, path
            before = rows_of(disk)
    assert cluster.get("/experiments/1").status == 200


def test_reports_refused_without_disk_space_are_recorded_later(
    cluster: Cluster, room: Room
) -> None:
    assert cluster.create(CONFIG).status == 201
    agent = Agent(cluster)
    first, second = agent.take_work()
    room(False)
    fill_free_pages(cluster)
    reports = [
        {"allocation": first, "writer": "0", "offset": 10, "line": metrics(1, loss=0.5)},
        {"allocation": second, "writer": "0", "offset": 10, "line": metrics(1, x="y" * 5000)},
    ]
    logs = [{"allocation": first, "offset": 0, "text": "a line\n" * 50}]
    assert full(agent.sync(reports=reports, logs=logs))
    assert full(agent.sync(reports=reports, logs=logs))
    room(True)
    answer = agent.sync(reports=reports, logs=logs)
    assert answer.json["acked"] == {first: {"0": 10}, second: {"0": 10}}
    for allocation in (first, second):
        agent.finish(allocation)
    assert cluster.get("/experiments/1").json["state"] == "COMPLETED"
    assert cluster.get("/trials/1/logs").json["text"] == "a line\n" * 50
    assert len(cluster.get("/trials/1/metrics").json["items"]) == 1


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
@pytest.mark.parametrize("where", ["fsync", "link", "replace", "mkdir"])
def test_upload_without_disk_space_is_unavailable_and_repeatable(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, where: str
) -> None:
    content = archive()
    digest = hashlib.sha256(content).hexdigest()
    offer = cluster.post("/model-code", {"sha256": digest, "size": len(content)}).json["upload"]

    def raise_error(*arguments: object, **named: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, where, raise_error)
        answer = call(cluster.app, "PUT", offer["path"], body=content)
        if answer.status != 204:
            assert (answer.status, answer.code) == (503, "unavailable")
            assert os.strerror(number) in answer.json["error"]["message"]
            assert cluster.get(f"/model-code/{digest}").status == 404
    assert call(cluster.app, "PUT", offer["path"], body=content).status == 204
    assert cluster.get(f"/model-code/{digest}").body == content
    assert list((tmp_path / "cluster" / "objects" / ".partial").iterdir()) == []


def test_log_refused_without_disk_space_is_stored_later(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cluster.create(CONFIG).status == 201
    agent = Agent(cluster)
    first, _ = agent.take_work()
    # More than a row stores.
    text = "a line\n" * SMALL_BYTES_MAX
    logs = [{"allocation": first, "offset": 0, "text": text}]

    def full_disk(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full_disk)
        answer = agent.sync(logs=logs)
        assert (answer.status, answer.code) == (503, "unavailable")
        assert "No space left on device" in answer.json["error"]["message"]
    assert cluster.get("/trials/1/logs").json["text"] == ""
    assert agent.sync(logs=logs).json["logs_acked"][first] == len(text)
    assert cluster.get("/trials/1/logs").json["text"] == text


class BrokenStore(DirectoryObjectStore):
    """An object store with closed file descriptors."""

    def size(self, key: ObjectKey) -> int:
        raise OSError(errno.EBADF, "canary")


def test_error_other_than_a_full_disk_is_internal_without_details(
    cluster: Cluster, tmp_path: Path
) -> None:
    services = replace(cluster.services, objects=BrokenStore(tmp_path, cluster.signer))
    broken = replace(cluster, services=services, app=create_app(services))
    answer = broken.post("/model-code", {"sha256": "0" * 64, "size": 10})
    assert (answer.status, answer.code) == (500, "internal")
    assert b"canary" not in answer.body


def put(sort: str, body: bytes = b"x") -> Put:
    return Put(Key("p", sort), 1, body, Expect.ABSENT)


class FailingConnection(sqlite3.Connection):
    """A connection with chosen failing statements, as on a broken disk."""

    failing: tuple[str, ...] = ()

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        if statement.startswith(self.failing):
            raise sqlite3.OperationalError("disk I/O error")
        return super().execute(statement, *values)


@pytest.mark.parametrize(
    "failing",
    [
        ("begin",),
        ("insert",),
        ("commit",),
        ("rollback",),
        ("commit", "rollback"),
        ("insert", "rollback"),
        ("begin", "rollback"),
    ],
    ids=" ".join,
)
def test_table_on_a_broken_disk_is_unavailable_and_recovers(
    tmp_path: Path, failing: tuple[str, ...]
) -> None:
    disk = Disk(FailingConnection)
    table = SqliteTable(tmp_path / "state.db", connect=disk.connect)
    table.commit((put("a"),))
    [broken] = disk.connections
    broken.failing = failing
    for n in range(3):
        with suppress(Unavailable):
            table.commit((put(f"b{n}"), put(f"c{n}")))
        if failing == ("rollback",):
            # Writes that could not be rolled back are invisible too.
            with pytest.raises((Conflict, Unavailable)):
                table.commit((put("d"), put("a")))
            with pytest.raises(Unavailable):
                table.get(Key("p", "d"))
    broken.failing = ()
    # A second process sees each commit completely or not at all.
    other = SqliteTable(tmp_path / "state.db")
    for n in range(3):
        seen = [other.get(Key("p", f"{name}{n}")) is None for name in "bc"]
        assert seen in ([True, True], [False, False])
    assert other.get(Key("p", "d")) is None
    table.commit((put("e"),))
    assert other.get(Key("p", "e")) is not None
    table.close()
    other.close()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: path.write_bytes(b"not a database " * 1000), "not a database"),
        (lambda path: path.mkdir(), "unable to open"),
        (lambda path: path.symlink_to("/dev/full"), "full|unable to open|disk I/O"),
    ],
    ids=["rubbish", "a folder", "a device"],
)
def test_file_that_is_not_a_table_is_unavailable(
    tmp_path: Path, damage: Callable[[Path], object], reason: str
) -> None:
    path = tmp_path / "state.db"
    damage(path)
    with pytest.raises(Unavailable, match=reason):
        SqliteTable(path)


def test_damaged_page_of_a_table_is_unavailable(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    table = SqliteTable(path)
    for n in range(200):
        table.commit((put(f"{n:04}", b"x" * 500),))
    table.close()
    content = bytearray(path.read_bytes())
    content[8192:40_960] = b"\xa5" * 32_768
    path.write_bytes(bytes(content))

    def read() -> None:
        opened = SqliteTable(path)
        for n in range(200):
            opened.get(Key("p", f"{n:04}"))

    with pytest.raises(Unavailable, match="malformed"):
        read()


def test_committed_command_is_answered_although_later_commits_fail(cluster: Cluster) -> None:
    assert cluster.create(CONFIG).status == 201
    agent = Agent(cluster)
    agent.take_work()
    engine, table = cluster.services.engine, cluster.services.table
    errors = chain([None], repeat(Unavailable("database or disk is full")))
    with everything_mailed():
        engine.table = RefusingTable(table, errors)
        headers = [("idempotency-key", "k")]
        token = TOKENS[Role.USER]
        path = f"{V1}/experiments/1/pause"
        answer = call(cluster.app, "POST", path, token=token, headers=headers)
        assert (answer.status, answer.json["state"]) == (200, "PAUSED")
        engine.table = table
    assert call(cluster.app, "POST", path, token=token, headers=headers).json["state"] == "PAUSED"
    # The trials have not received the message yet; the recovery pass delivers it 5 s later.
    assert all(entry["directives"]["preempt"] is None for entry in agent.sync().json["desired"])
    cluster.clock.ms += 6_000
    due_rows.process_due_rows(cluster.services.engine)
    assert all(entry["directives"]["preempt"] for entry in agent.sync().json["desired"])
