"""Firestore's table under faults that are injected between client and connections."""

import io
import json
from collections.abc import Callable
from typing import Any, cast

import pytest
import urllib3

from control_plane.gcp.firestore_client import FirestoreClient, authorize_owner
from control_plane.gcp.state_table import DUE_ROWS_MAX, FirestoreTable
from control_plane.state.retry_pauses import TRIES_MAX
from control_plane.state.table import (
    WORK_SHARDS,
    Check,
    Conflict,
    Delete,
    Expect,
    InvalidCommit,
    Key,
    Put,
    Row,
    Unavailable,
    Write,
    shard_of,
)
from tests.emulators.firestore import PROJECT, Firestore

KEY, OTHER, THIRD = Key("trial#1", "A"), Key("trial#1", "B"), Key("trial#1", "C")
HTTP_STATUS = {
    "ABORTED": 409,
    "ALREADY_EXISTS": 409,
    "CANCELLED": 499,
    "DEADLINE_EXCEEDED": 504,
    "FAILED_PRECONDITION": 400,
    "INTERNAL": 500,
    "INVALID_ARGUMENT": 400,
    "NOT_FOUND": 404,
    "PERMISSION_DENIED": 403,
    "RESOURCE_EXHAUSTED": 429,
    "UNAUTHENTICATED": 401,
    "UNAVAILABLE": 503,
    "UNKNOWN": 500,
}
NOTHING_DONE = ["ABORTED", "RESOURCE_EXHAUSTED"]
LOST = urllib3.exceptions.ReadTimeoutError(cast("Any", None), "", "lost")
BROKEN_OFF = urllib3.exceptions.ProtocolError("broken off")
UNREACHED = urllib3.exceptions.ConnectTimeoutError("unreached")
# A page from an intermediary, with the status of success.
PAGE = b"<html>welcome</html>"
Fault = str | Exception | bytes | urllib3.HTTPResponse
UNKNOWN: list[Fault] = [
    *("CANCELLED", "DEADLINE_EXCEEDED", "INTERNAL", "UNAVAILABLE", "UNKNOWN"),
    *(LOST, BROKEN_OFF, PAGE),
]


class FaultyPool:
    """Connections with injected faults: a status, an exception, a body or a whole answer.

    `before`: faults of the next requests, which are not sent. `after`: faults after the next sent
    requests. `act`: called once, after the next sent request. `verbs`: verbs of sent requests.
    """

    def __init__(self, pool: urllib3.PoolManager) -> None:
        self.before: list[Fault] = []
        self.after: list[Fault] = []
        self.act: Callable[[], object] = lambda: None
        self.verbs: list[str] = []
        self._pool = pool

    def request(self, method: str, url: str, **options: Any) -> Any:
        if self.before:
            return fail_by(self.before.pop(0))
        self.verbs.append(url.rpartition(":")[2].partition("?")[0])
        answer = self._pool.request(method, url, **options)
        act, self.act = self.act, lambda: None
        act()
        if self.after:
            answer.close()
            return fail_by(self.after.pop(0))
        return answer


def fail_by(fault: Fault) -> urllib3.HTTPResponse:
    """Raise a fault that is an exception. Return all other faults as answers."""
    if isinstance(fault, Exception):
        raise fault
    if isinstance(fault, urllib3.HTTPResponse):
        return fault
    if isinstance(fault, bytes):
        return urllib3.HTTPResponse(io.BytesIO(fault), status=200, preload_content=False)
    status = HTTP_STATUS[fault]
    error = {"error": {"code": status, "message": "injected", "status": fault}}
    return _answer(error, status)


def _answer(content: object, status: int = 200) -> urllib3.HTTPResponse:
    body = io.BytesIO(json.dumps(content).encode())
    return urllib3.HTTPResponse(body, status=status, preload_content=False)


@pytest.fixture
def database(firestore: Firestore) -> str:
    return firestore.new_database()


@pytest.fixture
def pool(firestore: Firestore) -> FaultyPool:
    return FaultyPool(firestore.pool)


@pytest.fixture
def pauses() -> list[float]:
    return []


@pytest.fixture
def table(
    firestore: Firestore, database: str, pool: FaultyPool, pauses: list[float]
) -> FirestoreTable:
    connections = cast("urllib3.PoolManager", pool)
    client = FirestoreClient(connections, PROJECT, database, authorize_owner, firestore.url)
    return FirestoreTable(client, sleep=pauses.append)


@pytest.fixture
def second_table(firestore: Firestore, database: str) -> FirestoreTable:
    """A table object on the shared database, as in a second process."""
    return FirestoreTable(firestore.client(database))


@pytest.mark.parametrize("fault", [*NOTHING_DONE, UNREACHED], ids=str)
def test_commit_without_effect_is_repeated(
    table: FirestoreTable, pool: FaultyPool, pauses: list[float], fault: str | Exception
) -> None:
    pool.before = [fault, fault]
    table.commit([Put(KEY, 1, b"", Expect.ABSENT)])
    assert table.get(KEY) == Row(KEY, 1, b"")
    assert len(pauses) == 2


def test_persistent_throttling_is_unavailable(
    table: FirestoreTable, pool: FaultyPool, pauses: list[float]
) -> None:
    pool.before = ["RESOURCE_EXHAUSTED"] * TRIES_MAX
    with pytest.raises(Unavailable, match=rf"injected \({TRIES_MAX} tries\)"):
        table.commit([Put(KEY, 1, b"", Expect.ABSENT)])
    assert len(pauses) == TRIES_MAX - 1
    assert pool.verbs == []


@pytest.mark.parametrize("fault", UNKNOWN, ids=str)
def test_commit_with_a_lost_answer_happens_once(
    table: FirestoreTable, pool: FaultyPool, fault: Fault
) -> None:
    table.commit([Put(KEY, 1, b"", Expect.ABSENT)])
    pool.verbs.clear()
    # The answer of the first attempt is lost, and the second attempt never arrives.
    pool.after, pool.act = [fault], lambda: pool.before.append(fault)
    table.commit([Put(KEY, 2, b"new", 1), Put(OTHER, 1, b"", Expect.ABSENT)])
    # The third attempt finds the token of the first attempt in the rows.
    assert pool.verbs == ["commit", "commit", "batchGet"]
    assert table.get_many([KEY, OTHER]) == (Row(KEY, 2, b"new"), Row(OTHER, 1, b""))
    with pytest.raises(Conflict):
        table.commit([Put(KEY, 2, b"new", 1)])


def test_lost_commit_is_repeated(table: FirestoreTable, pool: FaultyPool) -> None:
    table.commit([Put(KEY, 1, b"", Expect.ABSENT)])
    pool.before = ["UNAVAILABLE"]
    table.commit([Put(KEY, 2, b"new", 1)])
    assert table.get(KEY) == Row(KEY, 2, b"new")


def test_outcome_of_an_overwritten_lost_commit_is_unknown(
    table: FirestoreTable, second_table: FirestoreTable, pool: FaultyPool
) -> None:
    table.commit([Put(KEY, 1, b"", Expect.ABSENT)])
    pool.after, pool.act = [LOST], lambda: second_table.commit([Put(KEY, 3, b"theirs", 2)])
    with pytest.raises(Unavailable, match="may have been applied"):
        table.commit([Put(KEY, 2, b"ours", 1)])
    assert table.get(KEY) == Row(KEY, 3, b"theirs")


def test_malformed_answers_are_retried(table: FirestoreTable, pool: FaultyPool) -> None:
    table.commit([Put(KEY, 1, b"", Expect.ABSENT)])
    # The answers must not be mistaken for a database without the row.
    pool.before = [b"{}", b"7", b"[7]"]
    assert table.get(KEY) == Row(KEY, 1, b"")
    pool.before = [b"{}", b"7", b"[7]"]
    assert table.query("trial#1", "A", "B").rows == (Row(KEY, 1, b""),)
    pool.after = [b"{}"]
    table.commit([Put(KEY, 2, b"", 1)])
    assert table.get(KEY) == Row(KEY, 2, b"")


@pytest.mark.parametrize("expect", [Expect.ABSENT, Expect.ANYTHING])
def test_non_repeatable_commit_is_sent_once(
    table: FirestoreTable, pool: FaultyPool, expect: Expect
) -> None:
    pool.after = [LOST]
    table.commit([Put(KEY, 1, b"", expect)])
    assert pool.verbs == ["commit", "batchGet"]
    pool.before = [LOST]
    with pytest.raises(Unavailable, match="may have been applied"):
        table.commit([Put(OTHER, 1, b"", expect)])
    assert table.get(OTHER) is None


def test_commit_of_checks_is_repeated_and_may_conflict(
    table: FirestoreTable, second_table: FirestoreTable, pool: FaultyPool
) -> None:
    table.commit([Put(KEY, 1, b"", Expect.ABSENT)])
    pool.after, pool.act = [LOST], lambda: second_table.commit([Delete(KEY, 1)])
    with pytest.raises(Conflict):
        table.commit([Check(KEY, 1)])


def test_due_shards_needs_a_single_query(table: FirestoreTable) -> None:
    table.commit([Put(KEY, 1, b"", Expect.ABSENT, due_ms=5)])
    assert table.due_shards(WORK_SHARDS, 4) == ()
    assert table.due_shards(WORK_SHARDS, 5) == (shard_of("trial#1"),)
    # The query reads at most DUE_ROWS_MAX rows, which may all belong to the first shard.
    for n in range(1, DUE_ROWS_MAX):
        table.commit([Put(Key("trial#1", f"C{n:02d}"), 1, b"", Expect.ABSENT, due_ms=5)])
    assert table.due_shards((3, 5), 4) == ()
    assert table.due_shards(WORK_SHARDS, 5) == tuple(WORK_SHARDS)


def test_reads_are_retried(table: FirestoreTable, pool: FaultyPool) -> None:
    table.commit([Put(KEY, 1, b"", Expect.ABSENT, due_ms=1)])
    row = Row(KEY, 1, b"", 1)
    reads: tuple[Callable[[], object], ...] = (
        lambda: table.get(KEY) == row,
        lambda: table.get_many([KEY]) == (row,),
        lambda: table.query("trial#1", "A", "B").rows == (row,),
        lambda: table.query("trial#1", "A", "B", descending=True).rows == (row,),
        lambda: table.due_keys(shard_of("trial#1"), 1) == (KEY,),
        lambda: table.due_shards(WORK_SHARDS, 1) == (shard_of("trial#1"),),
    )
    for n, read in enumerate(reads):
        pool.before = [*NOTHING_DONE, UNKNOWN[n % len(UNKNOWN)], LOST, UNREACHED]
        assert read()


def test_error_after_the_first_answers_is_retried(table: FirestoreTable, pool: FaultyPool) -> None:
    table.commit([Put(KEY, 1, b"", Expect.ANYTHING)])
    error = {"error": {"code": 503, "message": "injected", "status": "UNAVAILABLE"}}
    pool.before = [
        _answer([error], 503),
        _answer([{"readTime": "2026-01-01T00:00:00Z"}, error]),
    ]
    assert table.query("trial#1", "A", "B").rows == (Row(KEY, 1, b""),)
    assert pool.before == []


@pytest.mark.parametrize("status", ["PERMISSION_DENIED", "UNAUTHENTICATED"])
def test_permission_errors_are_not_retried(
    table: FirestoreTable, pool: FaultyPool, pauses: list[float], status: str
) -> None:
    uses: tuple[Callable[[], object], ...] = (
        lambda: table.commit([Put(KEY, 1, b"", Expect.ABSENT)]),
        lambda: table.get(KEY),
    )
    for use in uses:
        pool.before = [status]
        with pytest.raises(Unavailable, match="injected"):
            use()
    assert pauses == []


@pytest.mark.parametrize("expect", [Expect.ABSENT, Expect.ANYTHING, 3])
def test_missing_database_is_unavailable(
    table: FirestoreTable, pool: FaultyPool, expect: Expect | int
) -> None:
    pool.before = ["NOT_FOUND"] * 2
    with pytest.raises(Unavailable):
        table.commit([Put(KEY, 1, b"", expect)])


def test_invalid_commit_is_refused(table: FirestoreTable, pool: FaultyPool) -> None:
    pool.before = ["INVALID_ARGUMENT"]
    with pytest.raises(InvalidCommit, match="injected"):
        table.commit([Put(KEY, 1, b"", Expect.ABSENT)])


def test_conflict_names_the_first_failed_row(
    table: FirestoreTable, second_table: FirestoreTable
) -> None:
    second_table.commit([Put(key, 1, b"", Expect.ABSENT) for key in (KEY, OTHER, THIRD)])
    writes: list[Write] = [
        Put(KEY, 2, b"", 1),
        Check(OTHER, Expect.ABSENT),
        Put(THIRD, 2, b"", 5),
    ]
    for _ in range(2):
        with pytest.raises(Conflict) as raised:
            table.commit(writes)
        assert raised.value.key == OTHER
        # The table now knows the rows, so that Firestore compares.
        table.get_many([KEY, OTHER, THIRD])
        writes[2] = Put(THIRD, 2, b"", 1)
        second_table.commit([Put(THIRD, 9, b"", Expect.PRESENT)])


def test_commit_is_repeated_if_the_conditions_hold_after_all(
    table: FirestoreTable, pool: FaultyPool, pauses: list[float]
) -> None:
    table.commit([Put(KEY, 1, b"", Expect.ABSENT)])
    pool.before = ["FAILED_PRECONDITION"]
    table.commit([Put(KEY, 2, b"", 1)])
    assert table.get(KEY) == Row(KEY, 2, b"")
    assert len(pauses) == 1


def test_rewritten_row_with_the_same_revision_meets_the_condition(
    table: FirestoreTable, second_table: FirestoreTable
) -> None:
    table.commit([Put(KEY, 1, b"ours", Expect.ABSENT)])
    second_table.commit([Put(KEY, 1, b"theirs", 1)])
    table.commit([Put(KEY, 2, b"", 1)])
    assert table.get(KEY) == Row(KEY, 2, b"")


def test_only_unseen_revisions_are_read(
    table: FirestoreTable, second_table: FirestoreTable, pool: FaultyPool
) -> None:
    table.commit([Put(KEY, 1, b"", Expect.ABSENT)])
    table.commit([Put(KEY, 2, b"", 1)])
    second_table.commit([Put(KEY, 3, b"", 2)])
    table.query("trial#1", "A", "B")
    table.commit([Put(KEY, 4, b"", 3)])
    assert pool.verbs == ["commit", "commit", "runQuery", "commit"]
    second_table.commit([Put(KEY, 5, b"", 4)])
    table.commit([Put(KEY, 6, b"", 5)])
    assert pool.verbs[4:] == ["batchGet", "commit"]


def test_check_writes_nothing(firestore: Firestore, database: str, table: FirestoreTable) -> None:
    table.commit([Put(KEY, 1, b"body", Expect.ABSENT, due_ms=5)])
    client = firestore.client(database)
    name = table.document_name(KEY)
    before = client.get_documents([name])
    table.commit([Check(KEY, 1), Check(OTHER, Expect.ABSENT)])
    table.commit([Check(KEY, Expect.PRESENT)])
    # Fields and update times are unchanged.
    assert client.get_documents([name, table.document_name(OTHER)]) == before


@pytest.mark.parametrize("descending", [False, True])
def test_interrupted_answer_becomes_a_page(
    firestore: Firestore, database: str, descending: bool
) -> None:
    client = FirestoreClient(
        firestore.pool,
        PROJECT,
        database,
        authorize_owner,
        firestore.url,
        query_bytes_max=40_000,
        block_bytes=4_000,
    )
    table = FirestoreTable(client)
    sorts = [f"{n}" for n in range(7)]
    # A document has more than 16,000 bytes, so that the answer exceeds the limit several times.
    table.commit([Put(Key("p", sort), 1, bytes(12_000), Expect.ABSENT) for sort in sorts])
    first, last, names, pages = "0", "9", [], 0
    while True:
        page = table.query("p", first, last, descending=descending)
        names += [row.key.sort for row in page.rows]
        pages += 1
        if page.next_sort is None:
            break
        first, last = (first, page.next_sort) if descending else (page.next_sort, last)
    assert names == (sorts[::-1] if descending else sorts)
    assert pages > 2
