"""The contract of state tables: tests that every table must pass.

A suite is a subclass with two fixtures: an empty `table`, and `reopen`, which opens the same rows
again as a second process would. Reads need not be snapshots: no test expects two rows of a query to
be from the same moment.
"""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from control_plane.engine.actor_types import parse_json
from control_plane.json_gate import BODY_DEPTH_MAX, NUMBER_MAX, check_value
from control_plane.state.table import (
    COMMIT_BYTES_MAX,
    EXPIRY_SHARDS,
    GET_MAX,
    OPERATIONS_MAX,
    PARTITION_BYTES_MAX,
    ROW_BYTES_MAX,
    SHARDS,
    SORT_BYTES_MAX,
    WORK_SHARDS,
    Check,
    Conflict,
    Delete,
    Expect,
    Expected,
    InvalidCommit,
    Key,
    Put,
    Row,
    StateTable,
    Unavailable,
    Write,
    row_bytes,
    shard_of,
)
from control_plane.storable_text import is_storable_text

Reopen = Callable[[], StateTable]
MakeWrite = Callable[[Expected], Write]

KEY = Key("trial#1", "A")
OTHER = Key("trial#1", "B")
BYSTANDER = Key("trial#2", "A")
# Rows whose byte order differs from the order of UTF-16 code units and of any locale: upper case
# first, a NUL inside, U+E000 (EE 80 80) before U+10000 (F0 90 80 80).
SORTS = ("A", "B", "Z", "a", "a\x00b", "a ", "a#", "aa", "z", "é", "\ue000", "\U00010000")
# Values and names at the limits of the gate, including values that some databases refuse or rename.
GATED: tuple[object, ...] = (
    json.loads('{"a":' * BODY_DEPTH_MAX + "1" + "}" * BODY_DEPTH_MAX),
    json.loads("[" * BODY_DEPTH_MAX + "]" * BODY_DEPTH_MAX),
    {"": "", "__name__": 1, "a.b": {"c": 2}, "$ref": None, "`": 3, "*": 4, "/": 5, ".": 6},
    [NUMBER_MAX, -NUMBER_MAX, 2**63, 2**53 + 1, 5e-324, 1.7976931348623157e308, -0.0],
    "\x01\x7f\x85\u2028\ufeff\uffff\U0010ffff",
    "\u00e9" * 190_000,
    {"k" * 100_000: "v"},
)
GATED_NAMES = (
    "__x__",
    ".",
    "..",
    "a/b",
    "*",
    "`a`",
    "\uffff",
    "\U0010ffff",
    "\x01",
    "e\u0301",
    "\u00e9",
)
THREADS = 8
INCREMENTS = 10

MUTATIONS: dict[str, MakeWrite] = {
    "put": lambda expect: Put(KEY, 9, b"new", expect),
    "delete": lambda expect: Delete(KEY, expect),
    "check": lambda expect: Check(KEY, expect),
}
# The row is absent, or present at revision 3.
CONDITIONS = [
    (None, Expect.ANYTHING, True),
    (None, Expect.ABSENT, True),
    (None, Expect.PRESENT, False),
    (None, 3, False),
    (None, 0, False),
    (3, Expect.ANYTHING, True),
    (3, Expect.ABSENT, False),
    (3, Expect.PRESENT, True),
    (3, 3, True),
    (3, 2, False),
    (3, 4, False),
]


class StateTableContract:
    """The tests for every state table."""

    @pytest.fixture
    def table(self) -> StateTable:
        raise AssertionError("a suite must define its table")

    @pytest.fixture
    def reopen(self) -> Reopen:
        raise AssertionError("a suite must define how to open its table again")

    def test_reads_many_rows_in_the_order_of_the_keys(self, table: StateTable) -> None:
        keys = [Key(f"trial#{n}", sort) for n in (2, 1) for sort in SORTS][:GET_MAX]
        table.commit([Put(key, n, b"%d" % n, Expect.ABSENT) for n, key in enumerate(keys, 1)])
        absent = Key("trial#3", "A")
        rows = table.get_many([*keys, absent, keys[0]])
        assert rows == (*(table.get(key) for key in keys), None, table.get(keys[0]))
        assert table.get_many([]) == ()

    def test_absent_row_is_none(self, table: StateTable) -> None:
        assert table.get(KEY) is None

    def test_row_is_read_unchanged(self, table: StateTable) -> None:
        body = bytes(range(256))
        table.commit([Put(KEY, 7, body, Expect.ABSENT, due_ms=5)])
        assert table.get(KEY) == Row(KEY, 7, body, 5)

    def test_empty_body_is_stored(self, table: StateTable) -> None:
        table.commit([Put(KEY, 1, b"", Expect.ABSENT)])
        assert table.get(KEY) == Row(KEY, 1, b"", None)

    def test_revision_may_exceed_32_bits(self, table: StateTable) -> None:
        table.commit([Put(KEY, 1 << 52, b"", Expect.ABSENT, due_ms=1 << 45)])
        table.commit([Check(KEY, 1 << 52), Put(OTHER, 1, b"", Expect.ABSENT)])
        assert table.get(KEY) == Row(KEY, 1 << 52, b"", 1 << 45)

    @pytest.mark.parametrize("kind", MUTATIONS)
    @pytest.mark.parametrize(("stored", "expect", "holds"), CONDITIONS)
    def test_condition_decides_a_commit(
        self, table: StateTable, kind: str, stored: int | None, expect: Expected, holds: bool
    ) -> None:
        if stored is not None:
            table.commit([Put(KEY, stored, b"old", Expect.ABSENT)])
        before = table.get(KEY)
        write = MUTATIONS[kind](expect)
        if holds:
            table.commit([write])
        else:
            with pytest.raises(Conflict) as raised:
                table.commit([write])
            assert raised.value.key == KEY
        after = {"put": Row(KEY, 9, b"new", None), "delete": None, "check": before}[kind]
        assert table.get(KEY) == (after if holds else before)

    @pytest.mark.parametrize("kind", MUTATIONS)
    def test_failing_last_write_undoes_the_commit(self, table: StateTable, kind: str) -> None:
        table.commit([Put(OTHER, 1, b"stays", Expect.ABSENT, due_ms=3)])
        with pytest.raises(Conflict):
            table.commit(
                [
                    Put(Key("trial#1", "C"), 1, b"", Expect.ABSENT, due_ms=1),
                    Put(BYSTANDER, 1, b"", Expect.ANYTHING),
                    Delete(OTHER, Expect.PRESENT),
                    MUTATIONS[kind](5),
                ]
            )
        assert table.get(Key("trial#1", "C")) is None
        assert table.get(BYSTANDER) is None
        assert table.get(OTHER) == Row(OTHER, 1, b"stays", 3)
        assert table.due_keys(shard_of("trial#1"), 10) == (OTHER,)

    def test_failing_first_write_undoes_the_commit(self, table: StateTable) -> None:
        with pytest.raises(Conflict):
            table.commit([Check(KEY, 1), Put(OTHER, 1, b"", Expect.ABSENT)])
        assert table.get(OTHER) is None

    def test_conditions_see_the_rows_before_the_commit(self, table: StateTable) -> None:
        table.commit([Put(KEY, 1, b"", Expect.ABSENT)])
        table.commit([Put(KEY, 2, b"", 1), Check(OTHER, Expect.ABSENT)])
        assert table.get(KEY) == Row(KEY, 2, b"", None)

    def test_table_works_after_a_conflict(self, table: StateTable) -> None:
        for _ in range(3):
            with pytest.raises(Conflict):
                table.commit([Check(KEY, 1)])
        table.commit([Put(KEY, 1, b"", Expect.ABSENT)])
        assert table.get(KEY) is not None

    @pytest.mark.parametrize("value", GATED, ids=lambda value: f"{value!r:.30}")
    def test_rows_store_every_value_that_the_gate_accepts(
        self, table: StateTable, value: object
    ) -> None:
        check_value(value, BODY_DEPTH_MAX)
        body = json.dumps(value, ensure_ascii=False).encode()
        table.commit([Put(KEY, 1, body, Expect.ABSENT)])
        stored = table.get(KEY)
        assert stored is not None
        assert stored.body == body
        assert parse_json(stored.body) == json.loads(stored.body) == value

    @pytest.mark.parametrize("name", GATED_NAMES, ids=lambda name: f"{name!a:.30}")
    def test_keys_store_every_name_that_the_gate_accepts(
        self, table: StateTable, name: str
    ) -> None:
        assert is_storable_text(name)
        for key in (Key("names", name), Key(name, "A"), Key(name, name)):
            table.commit([Put(key, 1, b"x", Expect.ABSENT, due_ms=5)])
            assert table.get(key) == Row(key, 1, b"x", 5)
            assert [row.key for row in table.query(key.partition, name, f"{name}~").rows] == (
                [key] if key.sort == name else []
            )
            table.commit([Delete(key, 1)])

    @pytest.mark.parametrize("key", [Key("\ud800", "A"), Key("p", "a\udfff")])
    def test_key_that_is_not_unicode_is_refused(self, table: StateTable, key: Key) -> None:
        with pytest.raises(InvalidCommit, match="surrogate"):
            table.commit([Put(key, 1, b"", Expect.ABSENT)])

    def test_range_is_half_open_within_a_partition(self, table: StateTable) -> None:
        _put_all(table, "p", ("a", "b", "c", "d"))
        _put_all(table, "p2", ("b",))
        page = table.query("p", "b", "d")
        assert [row.key for row in page.rows] == [Key("p", "b"), Key("p", "c")]
        assert page.next_sort is None
        assert table.query("p", "x", "z").rows == ()
        assert table.query("nobody", "a", "z").rows == ()

    def test_sort_keys_are_compared_as_utf8_bytes(self, table: StateTable) -> None:
        _put_all(table, "p", SORTS)
        in_bytes = sorted(SORTS, key=str.encode)
        assert _sorts(table, "p") == in_bytes
        assert _sorts(table, "p", descending=True) == in_bytes[::-1]
        sorts = [row.key.sort for row in table.query("p", "a", "b").rows]
        assert sorts == ["a", "a\x00b", "a ", "a#", "aa"]

    @pytest.mark.parametrize("descending", [False, True])
    @pytest.mark.parametrize("limit", [1, 2, 3, 7, 8])
    def test_pages_add_up_to_the_range(
        self, table: StateTable, limit: int, descending: bool
    ) -> None:
        sorts = [f"{n:02d}" for n in range(7)]
        _put_all(table, "p", sorts)
        pages = _pages(table, "p", limit, descending)
        assert [len(page) for page in pages] == _page_sizes(7, limit)
        found = [sort for page in pages for sort in page]
        assert found == (sorts[::-1] if descending else sorts)

    @pytest.mark.parametrize("descending", [False, True])
    def test_page_ends_at_about_a_mebibyte(self, table: StateTable, descending: bool) -> None:
        # 5 rows of 300 KiB: three rows fill 900 KiB, and a fourth would pass 1 MiB.
        for n in range(5):
            body = bytes(300 * 1024)
            table.commit([Put(Key("p", f"{n}"), 1, body, Expect.ABSENT)])
        pages = _pages(table, "p", 1000, descending)
        assert [len(page) for page in pages] == [3, 2]
        order = list("43210" if descending else "01234")
        assert [sort for page in pages for sort in page] == order

    def test_due_index_has_only_rows_with_a_due_time(self, table: StateTable) -> None:
        timed, untimed = Key("p", "timed"), Key("p", "untimed")
        table.commit(
            [Put(timed, 1, b"", Expect.ABSENT, due_ms=10), Put(untimed, 1, b"", Expect.ABSENT)]
        )
        assert table.due_keys(shard_of("p"), 10) == (timed,)
        assert table.due_keys(shard_of("p"), 9) == ()

    def test_due_rows_are_read_between_two_times(self, table: StateTable) -> None:
        rows = [Key("p", f"{due_ms:02d}") for due_ms in (10, 20, 30)]
        table.commit([Put(key, 1, b"", Expect.ABSENT, due_ms=int(key.sort)) for key in rows])
        shard = shard_of("p")
        # The lower time is excluded, the upper included.
        assert table.due_keys(shard, 30, after_ms=10) == tuple(rows[1:])
        assert table.due_keys(shard, 29, after_ms=9) == tuple(rows[:2])
        assert table.due_keys(shard, 30, after_ms=10, limit=1) == (rows[1],)
        assert table.due_keys(shard, 99, after_ms=30) == ()

    def test_due_index_follows_updates_and_deletions(self, table: StateTable) -> None:
        shard = shard_of(KEY.partition)
        table.commit([Put(KEY, 1, b"", Expect.ABSENT, due_ms=10)])
        table.commit([Put(KEY, 2, b"", 1, due_ms=20)])
        assert table.due_keys(shard, 19) == ()
        assert table.due_keys(shard, 20) == (KEY,)
        table.commit([Put(KEY, 3, b"", Expect.PRESENT)])
        assert table.due_keys(shard, 100) == ()
        table.commit([Put(KEY, 4, b"", Expect.ANYTHING, due_ms=5)])
        assert table.due_keys(shard, 100) == (KEY,)
        table.commit([Delete(KEY, 4)])
        assert table.due_keys(shard, 100) == ()

    def test_expiring_rows_are_in_separate_shards(self, table: StateTable) -> None:
        work, expiring = shard_of(KEY.partition), shard_of(KEY.partition, expires=True)
        assert (work in WORK_SHARDS, expiring in EXPIRY_SHARDS) == (True, True)
        table.commit([Put(KEY, 1, b"", Expect.ABSENT, due_ms=10, expires=True)])
        assert table.due_keys(work, 10) == ()
        assert table.due_keys(expiring, 10) == (KEY,)
        assert table.get(KEY) == Row(KEY, 1, b"", 10, expires=True)
        table.commit([Put(KEY, 2, b"", 1, due_ms=10)])
        assert table.due_keys(work, 10) == (KEY,)
        assert table.due_keys(expiring, 10) == ()
        assert table.get(KEY) == Row(KEY, 2, b"", 10)
        table.commit([Put(KEY, 3, b"", 2, due_ms=10, expires=True)])
        table.commit([Delete(KEY, 3)])
        assert table.due_keys(work, 10) == table.due_keys(expiring, 10) == ()

    def test_shard_lists_due_rows_in_order_of_time(self, table: StateTable) -> None:
        partitions = [f"trial#{n}" for n in range(40)]
        for n, partition in enumerate(partitions):
            due_ms = 1000 - n
            table.commit([Put(Key(partition, "M"), 1, b"", Expect.ABSENT, due_ms=due_ms)])
        for shard in range(SHARDS):
            ours = [Key(name, "M") for name in partitions if shard_of(name) == shard]
            assert list(table.due_keys(shard, 1000)) == ours[::-1]
            assert list(table.due_keys(shard, 1000, limit=2)) == ours[::-1][:2]

    def test_every_shard_with_due_rows_is_listed(self, table: StateTable) -> None:
        """A table may also list shards without due rows.

        The list does not depend on shards outside the request.
        """
        keys = {shard_of(name): Key(name, "M") for name in (f"trial#{n}" for n in range(200))}
        assert len(keys) == SHARDS
        for shard, due_ms in ((1, 10), (4, 20), (9, 30)):
            table.commit([Put(keys[shard], 1, b"", Expect.ABSENT, due_ms=due_ms)])
        expiring = Put(Key("trial#1", "I"), 1, b"", Expect.ABSENT, due_ms=5, expires=True)
        table.commit([expiring])
        assert {1, 4} <= set(table.due_shards(WORK_SHARDS, 20)) <= set(WORK_SHARDS)
        assert {9} <= set(table.due_shards((9, 12), 30)) <= {9, 12}
        assert {shard_of("trial#1", expires=True)} <= set(table.due_shards(EXPIRY_SHARDS, 5))
        for n in range(20):
            key = Key(keys[1].partition, f"N{n}")
            table.commit([Put(key, 1, b"", Expect.ABSENT, due_ms=1)])
        # Regardless of the number of earlier rows in another shard.
        assert {1, 4, 9} <= set(table.due_shards(WORK_SHARDS, 30))

    def test_commit_has_at_most_100_operations(self, table: StateTable) -> None:
        puts = [Put(Key("p", f"{n:03d}"), 1, b"", Expect.ABSENT) for n in range(OPERATIONS_MAX)]
        table.commit(puts)
        assert len(table.query("p", "0", "9").rows) == OPERATIONS_MAX
        checks: Sequence[Write] = [Check(Key("q", f"{n}"), Expect.ABSENT) for n in range(101)]
        with pytest.raises(InvalidCommit, match="101 operations"):
            table.commit(checks)
        with pytest.raises(InvalidCommit, match="0 operations"):
            table.commit([])

    def test_row_has_at_most_400_kib(self, table: StateTable) -> None:
        room = ROW_BYTES_MAX - row_bytes(KEY, b"")
        table.commit([Put(KEY, 1, bytes(room), Expect.ABSENT)])
        row = table.get(KEY)
        assert row is not None
        assert len(row.body) == room
        with pytest.raises(InvalidCommit, match="bytes"):
            table.commit([Put(OTHER, 1, bytes(room + 1), Expect.ABSENT)])
        assert table.get(OTHER) is None

    def test_commit_has_at_most_3_mb(self, table: StateTable) -> None:
        keys = [Key("p", f"{n:02d}") for n in range(16)]
        share = COMMIT_BYTES_MAX // 16 - row_bytes(keys[0], b"")
        table.commit([Put(key, 1, bytes(share), Expect.ABSENT) for key in keys])
        heavier = [Put(key, 2, bytes(share + 1), 1) for key in keys]
        with pytest.raises(InvalidCommit, match="bytes in a commit"):
            table.commit(heavier)
        assert all(table.get(key) == Row(key, 1, bytes(share)) for key in keys)

    def test_commit_touches_a_row_once(self, table: StateTable) -> None:
        with pytest.raises(InvalidCommit, match="two operations on one row"):
            table.commit([Check(KEY, Expect.ABSENT), Put(KEY, 1, b"", Expect.ABSENT)])
        assert table.get(KEY) is None

    @pytest.mark.parametrize(
        "key",
        [
            Key("", "a"),
            Key("p", ""),
            Key("p" * (PARTITION_BYTES_MAX + 1), "a"),
            Key("p", "é" * (SORT_BYTES_MAX // 2) + "a"),  # 2 bytes each, and one more
        ],
    )
    def test_refuses_empty_and_long_keys(self, table: StateTable, key: Key) -> None:
        for write in (Put(key, 1, b"", Expect.ANYTHING), Check(key, Expect.ABSENT)):
            with pytest.raises(InvalidCommit, match="empty or too long"):
                table.commit([write])

    def test_longest_keys_are_stored(self, table: StateTable) -> None:
        key = Key("p" * PARTITION_BYTES_MAX, "é" * (SORT_BYTES_MAX // 2))
        table.commit([Put(key, 1, b"x", Expect.ABSENT)])
        assert table.get(key) == Row(key, 1, b"x")

    def test_rows_survive_reopening(self, table: StateTable, reopen: Reopen) -> None:
        _put_all(table, "p", SORTS)
        table.commit([Put(KEY, 4, b"body", Expect.ABSENT, due_ms=10)])
        again = reopen()
        assert _sorts(again, "p") == sorted(SORTS, key=str.encode)
        assert again.get(KEY) == Row(KEY, 4, b"body", 10)
        assert again.due_keys(shard_of(KEY.partition), 10) == (KEY,)
        again.commit([Put(KEY, 5, b"newer", 4)])
        assert table.get(KEY) == Row(KEY, 5, b"newer")

    def test_two_connections_see_commits_at_once(self, table: StateTable, reopen: Reopen) -> None:
        other = reopen()
        for n in range(10):
            writer, reader = (table, other) if n % 2 else (other, table)
            writer.commit([Put(KEY, n + 1, b"%d" % n, n or Expect.ABSENT)])
            assert reader.get(KEY) == Row(KEY, n + 1, b"%d" % n)
            with pytest.raises(Conflict):
                reader.commit([Put(KEY, 99, b"", n)])

    def test_threads_count_exactly(self, table: StateTable, reopen: Reopen) -> None:
        table.commit([Put(KEY, 1, b"0", Expect.ABSENT)])
        with ThreadPoolExecutor(THREADS) as threads:
            tables = [table if n % 2 else reopen() for n in range(THREADS)]
            list(threads.map(increment, tables))
        row = reopen().get(KEY)
        assert row is not None
        assert (row.revision, row.body) == (1 + THREADS * INCREMENTS, b"80")


def increment(table: StateTable, times: int = INCREMENTS) -> None:
    """Add 1 to the number in KEY `times` times, each by a commit that expects the revision read."""
    for _ in range(times):
        while True:
            row = table.get(KEY)
            assert row is not None
            try:
                table.commit(
                    [Put(KEY, row.revision + 1, b"%d" % (int(row.body) + 1), row.revision)]
                )
            except (Conflict, Unavailable):
                continue
            break


def _put_all(table: StateTable, partition: str, sorts: Sequence[str]) -> None:
    table.commit([Put(Key(partition, sort), 1, sort.encode(), Expect.ABSENT) for sort in sorts])


def _sorts(table: StateTable, partition: str, *, descending: bool = False) -> list[str]:
    page = table.query(partition, "\x01", "\U0010ffff", descending=descending)
    return [row.key.sort for row in page.rows]


def _pages(table: StateTable, partition: str, limit: int, descending: bool) -> list[list[str]]:
    first, last = "0", "9"
    pages: list[list[str]] = []
    while True:
        page = table.query(partition, first, last, limit=limit, descending=descending)
        pages.append([row.key.sort for row in page.rows])
        if page.next_sort is None:
            return pages
        if descending:
            last = page.next_sort
        else:
            first = page.next_sort


def _page_sizes(total: int, limit: int) -> list[int]:
    """Return the sizes of pages of `limit` rows: 7 rows by 3 are pages of 3, 3 and 1."""
    return [min(limit, total - start) for start in range(0, total, limit)]
