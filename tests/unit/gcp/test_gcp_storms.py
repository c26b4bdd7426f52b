"""Firestore's table under random refusals and lost answers, and the sizes of random commits."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import urllib3
from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.gcp import row_documents
from control_plane.gcp.firestore_client import FirestoreClient, authorize_owner
from control_plane.gcp.state_table import FirestoreTable
from control_plane.state.retry_pauses import PAUSE_SECONDS_MAX, TRIES_MAX
from control_plane.state.table import (
    COMMIT_BYTES_MAX,
    OPERATIONS_MAX,
    PARTITION_BYTES_MAX,
    ROW_BYTES_MAX,
    SORT_BYTES_MAX,
    Expect,
    Key,
    Put,
    Row,
    Unavailable,
    check_limits,
    row_bytes,
    shard_of,
)
from tests.emulators.firestore import PROJECT, Firestore
from tests.emulators.firestore_indexes import composite_indexes
from tests.unit.gcp.test_gcp_state_table import (
    NOTHING_DONE,
    UNKNOWN,
    UNREACHED,
    Fault,
    fail_by,
)

# Firestore's own limits.
WRITES_MAX, REQUEST_BYTES_MAX = 500, 10 << 20
KEY = Key("trial#1", "A")
# A request passes, is refused without an effect, or takes effect and loses its answer.
WEATHER = st.one_of(
    st.none(),
    st.tuples(st.just("before"), st.sampled_from([*NOTHING_DONE, UNREACHED, *UNKNOWN])),
    st.tuples(st.just("after"), st.sampled_from(UNKNOWN)),
)


class StormyPool:
    """Connections with a fault or None in `weather` for each next request; all later requests pass.

    `verbs`: verbs of all requests, refused requests included.
    """

    def __init__(self, pool: urllib3.PoolManager, weather: Sequence[Any]) -> None:
        self.verbs: list[str] = []
        self._weather = list(weather)
        self._pool = pool

    def request(self, method: str, url: str, **options: Any) -> Any:
        self.verbs.append(url.rpartition(":")[2].partition("?")[0])
        when, fault = (self._weather.pop(0) if self._weather else None) or ("", None)
        if when == "before":
            return fail_by(cast("Fault", fault))
        answer = self._pool.request(method, url, **options)
        if when == "after":
            answer.close()
            return fail_by(cast("Fault", fault))
        return answer


@settings(max_examples=60, deadline=None)
@given(st.lists(WEATHER, min_size=1, max_size=3 * TRIES_MAX), st.integers(1, 4))
def test_commit_in_a_storm_is_atomic_or_unavailable(
    firestore: Firestore, weather: Sequence[Any], commits: int
) -> None:
    database = firestore.new_database()
    pool, pauses = StormyPool(firestore.pool, weather), list[float]()
    connections = cast("urllib3.PoolManager", pool)
    client = FirestoreClient(connections, PROJECT, database, authorize_owner, firestore.url)
    table, truth = (
        FirestoreTable(client, sleep=pauses.append),
        FirestoreTable(firestore.client(database)),
    )
    for number in range(commits):
        before = truth.get(KEY)
        revision = before.revision if before else 0
        entry = Key(KEY.partition, f"B{number}")
        writes = [
            Put(KEY, revision + 1, b"%d" % number, revision or Expect.ABSENT),
            Put(entry, 1, b"", Expect.ABSENT),
        ]
        verb_count = len(pool.verbs)
        try:
            # The table is the only writer, so that no conflict arises.
            table.commit(writes)
            is_known = True
        except Unavailable:
            is_known = False
        happened = (Row(KEY, revision + 1, b"%d" % number), Row(entry, 1, b""))
        rows = truth.get_many((KEY, entry))
        assert rows == happened or (not is_known and rows == (before, None))
        assert pool.verbs[verb_count:].count("commit") <= TRIES_MAX
    # No request uses a transaction, which would lock rows.
    assert set(pool.verbs) <= {"commit", "batchGet"}
    assert all(0 <= pause <= PAUSE_SECONDS_MAX for pause in pauses)


@settings(max_examples=30, deadline=None)
@given(st.lists(WEATHER, max_size=TRIES_MAX - 1))
def test_read_in_a_storm_returns_the_stored_row(
    firestore: Firestore, weather: Sequence[Any]
) -> None:
    database = firestore.new_database()
    FirestoreTable(firestore.client(database)).commit([Put(KEY, 7, b"body", Expect.ABSENT, 5)])
    reads: Sequence[Callable[[FirestoreTable], Row | None]] = (
        lambda table: table.get(KEY),
        lambda table: table.query(KEY.partition, "A", "B").rows[0],
        lambda table: table.get(table.due_keys(shard_of(KEY.partition), 5)[0]),
    )
    for read in reads:
        pool = cast("urllib3.PoolManager", StormyPool(firestore.pool, weather))
        client = FirestoreClient(pool, PROJECT, database, authorize_owner, firestore.url)
        assert read(FirestoreTable(client, sleep=lambda seconds: None)) == Row(KEY, 7, b"body", 5)


class SizingPool:
    """Connections that record the size and the number of writes of each request."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.writes: list[int] = []

    def request(self, method: str, url: str, *, body: bytes, **options: Any) -> Any:
        self.sizes.append(len(body))
        results = [{"updateTime": ""} for _ in json.loads(body)["writes"]]
        self.writes.append(len(results))
        answer = json.dumps({"writeResults": results}).encode()
        return fail_by(answer)


# Characters with the most bytes in JSON or in UTF-8, and with the fewest.
CHARACTERS = st.sampled_from(["\x01", "é", "\U0001f600", "a"])


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, OPERATIONS_MAX),
    CHARACTERS,
    st.floats(0, 1),
    st.floats(0, 1),
    st.booleans(),
)
def test_accepted_commits_fit_firestores_limits(
    rows: int, character: str, partition_share: float, sort_share: float, is_due: bool
) -> None:
    def text(share: float, bytes_max: int, number: int) -> str:
        room = int(share * (bytes_max - 8)) // len(character.encode())
        return f"{number:03d}{character * room}"

    keys = [
        Key(
            text(partition_share, PARTITION_BYTES_MAX, count),
            text(sort_share, SORT_BYTES_MAX, count),
        )
        for count in range(rows)
    ]
    # The largest bodies that a commit of these keys allows.
    share = min(ROW_BYTES_MAX, COMMIT_BYTES_MAX // rows)
    puts = [
        Put(key, 1 << 52, bytes(share - row_bytes(key, b"")), Expect.ABSENT, 1 if is_due else None)
        for key in keys
    ]
    check_limits(puts)
    pool = SizingPool()
    connections = cast("urllib3.PoolManager", pool)
    client = FirestoreClient(connections, "p" * 30, "d" * 63, authorize_owner)
    FirestoreTable(client).commit(puts)
    assert pool.writes == [rows]
    assert rows <= WRITES_MAX
    assert pool.sizes[0] <= REQUEST_BYTES_MAX


def test_indexes_and_document_names_begin_with_a_hash() -> None:
    """Firestore limits writes at the end of a key range to 500 a second.

    Therefore an index begins with a hash or a shard, and a document's name with the hash.
    """
    beginnings: list[Mapping[str, str]] = [index["fields"][0] for index in composite_indexes()]
    assert {beginning["fieldPath"] for beginning in beginnings} == {"k", "h"}
    partitions = [f"trial#{number}" for number in range(1000)]
    names = [
        row_documents.document_path(Key(partition, "M")).rpartition("/")[2]
        for partition in partitions
    ]
    assert names != sorted(names)
    assert all(
        name.startswith(row_documents.partition_hash(partition))
        for name, partition in zip(names, partitions, strict=True)
    )
    # 1,000 neighbours are 62.5 in each of 16 shards, with a deviation of 7.7: no shard is hot.
    counts = [sum(shard_of(partition) == shard for partition in partitions) for shard in range(16)]
    assert max(counts) < 62.5 + 5 * 7.7
