"""Firestore's table on a database that refuses checks as writes without effect."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from control_plane.gcp.firestore_client import FirestoreClient, authorize_owner
from control_plane.gcp.state_table import FirestoreTable
from control_plane.state.table import (
    Check,
    Conflict,
    Delete,
    Expect,
    InvalidCommit,
    Key,
    Put,
    Row,
    Unavailable,
)
from tests.emulators.firestore import PROJECT, Firestore
from tests.emulators.firestore_checks import CheckRefusingPool

KEY, OTHER, THIRD = Key("trial#1", "A"), Key("trial#1", "B"), Key("trial#1", "C")

OpenTable = Callable[..., tuple[FirestoreTable, CheckRefusingPool]]


@pytest.fixture
def open_table(firestore: Firestore) -> OpenTable:
    """Return a function that opens the same database in a new process."""
    database = firestore.new_database()

    def open_table(**refusal: Any) -> tuple[FirestoreTable, CheckRefusingPool]:
        pool = CheckRefusingPool(firestore.pool, **refusal)
        connections = cast("Any", pool)
        client = FirestoreClient(connections, PROJECT, database, authorize_owner, firestore.url)
        return FirestoreTable(client, sleep=lambda seconds: None), pool

    return open_table


REFUSALS = [
    {},
    {"status": "PERMISSION_DENIED", "http_status": 403},
    # Statuses of a failed precondition, although the condition holds.
    {"status": "FAILED_PRECONDITION", "http_status": 400},
    {"status": "NOT_FOUND", "http_status": 404},
]


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda item: item.get("status", "default"))
def test_refused_checks_become_reads_of_a_transaction(
    open_table: OpenTable, caplog: pytest.LogCaptureFixture, refusal: dict[str, Any]
) -> None:
    table, pool = open_table(**refusal)
    table.commit([Put(KEY, 1, b"", Expect.ABSENT)])
    table.commit([Put(OTHER, 1, b"a", Expect.ABSENT), Check(KEY, 1), Check(THIRD, Expect.ABSENT)])
    assert table.get(OTHER) == Row(OTHER, 1, b"a")
    sent = len(pool.verbs)
    table.commit([Put(OTHER, 2, b"b", 1), Check(KEY, Expect.PRESENT)])
    # The process does not try the refused form again.
    assert pool.verbs[sent:] == ["batchGet", "commit"]
    assert len(caplog.records) == 1
    assert "Firestore refuses checks of rows" in caplog.text
    # A check does not change the checked row.
    table.commit([Put(KEY, 2, b"", 1)])


def test_commit_of_checks_alone_only_reads(open_table: OpenTable) -> None:
    table, pool = open_table()
    table.commit([Put(KEY, 1, b"", Expect.ABSENT)])
    table.commit([Check(KEY, 1), Check(OTHER, Expect.ABSENT)])
    with pytest.raises(Conflict) as caught:
        table.commit([Check(KEY, 1), Check(OTHER, Expect.PRESENT)])
    assert caught.value.key == OTHER
    assert pool.verbs.count("commit") == 2
    assert "rollback" not in pool.verbs


@pytest.mark.parametrize(
    "check", [Check(KEY, 2), Check(KEY, Expect.ABSENT), Check(OTHER, Expect.PRESENT)], ids=str
)
def test_check_that_does_not_hold_is_a_conflict(open_table: OpenTable, check: Check) -> None:
    table, _ = open_table()
    table.commit([Put(KEY, 1, b"", Expect.ABSENT)])
    table.commit([Put(THIRD, 1, b"", Expect.ABSENT), Check(KEY, 1)])
    with pytest.raises(Conflict) as caught:
        table.commit([Put(THIRD, 2, b"lost", Expect.ANYTHING), check])
    assert caught.value.key == check.key
    assert table.get(THIRD) == Row(THIRD, 1, b"")
    # No lock is left.
    other, _ = open_table()
    other.commit([Put(KEY, 2, b"", 1)])


def test_invalid_commit_is_not_a_refused_check(
    open_table: OpenTable, caplog: pytest.LogCaptureFixture
) -> None:
    """Both forms are refused, so the form of checks is not the cause."""
    table, pool = open_table()
    table.commit([Put(KEY, 1, b"", Expect.ABSENT)])
    pool.refuses_all = True
    with pytest.raises(InvalidCommit, match="INVALID_ARGUMENT"):
        table.commit([Put(OTHER, 1, b"", Expect.ABSENT), Check(KEY, 1)])
    assert caplog.records == []


def test_lack_of_every_permission_is_unavailable(open_table: OpenTable) -> None:
    table, pool = open_table(status="PERMISSION_DENIED", http_status=403)
    pool.refuses_all = True
    with pytest.raises(Unavailable, match="PERMISSION_DENIED"):
        table.commit([Put(KEY, 1, b"", Expect.ABSENT), Check(OTHER, Expect.ABSENT)])


def test_delete_with_a_check_is_applied(open_table: OpenTable) -> None:
    table, _ = open_table()
    table.commit([Put(KEY, 1, b"", Expect.ABSENT), Put(OTHER, 1, b"", Expect.ABSENT)])
    table.commit([Delete(OTHER, 1), Check(KEY, 1)])
    assert table.get_many([KEY, OTHER]) == (Row(KEY, 1, b""), None)


def test_checked_row_that_changes_meanwhile_prevents_the_commit(open_table: OpenTable) -> None:
    """Two processes take the same place: each writes its row if the other's row is missing."""
    for number in range(6):
        mine, theirs = Key("p", f"a{number}"), Key("p", f"b{number}")
        start, won = threading.Barrier(2), list[Key]()

        def take(own: Key, foreign: Key, start: threading.Barrier, won: list[Key]) -> None:
            table, _ = open_table()
            start.wait()
            try:
                table.commit([Put(own, 1, b"", Expect.ABSENT), Check(foreign, Expect.ABSENT)])
            except Conflict:
                return
            won.append(own)

        with ThreadPoolExecutor(2) as executor:
            jobs = [
                executor.submit(take, mine, theirs, start, won),
                executor.submit(take, theirs, mine, start, won),
            ]
            for job in jobs:
                job.result()
        assert len(won) == 1
