"""Every report is read exactly once, despite merges during the read and crashes."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.agents.metric_rows import (
    FULL_BYTES,
    FULL_REPORTS,
    METRICS,
    METRICS_END,
    Stream,
    find_start,
    group_range,
    merge_allocation,
    merge_stream,
    read_segments,
    segment_writes,
    store_full_segment,
    to_segment,
)
from control_plane.metrics.columns import MetricReport
from control_plane.metrics.segment import content_digest, decode_summary, report_count
from control_plane.objects.directory import DirectoryObjectStore
from control_plane.objects.signing import HmacUrlSigner
from control_plane.objects.store import ObjectKey, ObjectStore
from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import ROW_BYTES_MAX, Conflict, Put, Row, StateTable, Write
from simulator.faults.table_faults import Crash, CrashingTable, InterleavingTable, TearingTable

TRIAL = 7
STREAM = Stream("training", 1, "0")


@pytest.fixture
def table() -> Iterator[SqliteTable]:
    made = SqliteTable(":memory:")
    yield made
    made.close()


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> ObjectStore:
    return DirectoryObjectStore(tmp_path_factory.mktemp("objects"), HmacUrlSigner(b"s" * 32))


def report(offset: int, text: str = "") -> MetricReport:
    return MetricReport(
        offset, offset // 10, 0, {"loss": offset / 7} | ({"note": text} if text else {})
    )


def write(table: StateTable, offsets: Sequence[int], stream: Stream = STREAM) -> None:
    """Write the reports of a sync."""
    table.commit(list(segment_writes(TRIAL, stream, [report(offset) for offset in offsets])))


def read(
    table: StateTable, objects: ObjectStore, first: str = METRICS, last: str = METRICS_END
) -> list[tuple[Stream, int]]:
    """Return the stream and offset of each report, in the order of a reader."""
    offsets: list[tuple[Stream, int]] = []
    before: dict[Stream, int] = {}
    for segment in read_segments(table, TRIAL, first, last):
        columns = segment.read_columns(objects).reports_after(before.get(segment.stream, 0))
        for metric_report in columns.reports():
            assert metric_report == report(metric_report.offset)
            offsets.append((segment.stream, metric_report.offset))
            before[segment.stream] = metric_report.offset
    return offsets


def merge_rows(table: StateTable, objects: ObjectStore) -> int:
    return merge_stream(table, TRIAL, STREAM, partial(store_full_segment, objects))


def rows(table: StateTable) -> tuple[Row, ...]:
    return table.query(f"trial#{TRIAL}", METRICS, METRICS_END).rows


def test_small_rows_are_merged(table: SqliteTable, objects: ObjectStore) -> None:
    for n in range(1, 49):
        write(table, [10 * n])
    assert merge_rows(table, objects) == 47
    [row] = rows(table)
    assert row.key.sort == STREAM.sort_key(480)
    assert read(table, objects) == [(STREAM, 10 * n) for n in range(1, 49)]


def test_merge_leaves_rows_of_a_newer_release(table: SqliteTable, objects: ObjectStore) -> None:
    write(table, [10])
    [row] = rows(table)
    table.commit([Put(row.key, 2, b"\x09" + row.body[1:], 1)])
    for n in range(2, 9):
        write(table, [10 * n])
    assert merge_rows(table, objects) == 6
    assert [row.body[0] for row in rows(table)] == [9, 1]


def test_merge_conflicts_with_changed_rows(table: SqliteTable, objects: ObjectStore) -> None:
    for n in range(1, 9):
        write(table, [10 * n])
    racing = InterleavingTable(table, lambda: merge_rows(table, objects))
    with pytest.raises(Conflict):
        merge_rows(racing, objects)
    assert [offset for _, offset in read(table, objects)] == [10 * n for n in range(1, 9)]


def test_merges_all_streams_of_one_allocation_only(
    table: SqliteTable, objects: ObjectStore
) -> None:
    streams = [
        Stream(group, epoch, writer)
        for group in ("a", "a b", "training", "~")
        for epoch in (1, 2, 3)
        for writer in ("0", "1")
    ]
    for stream in streams:
        for n in (1, 2, 3):
            write(table, [n], stream)
    # 4 groups and 2 writers of allocation 2, of 3 rows each, of which 1 is left: 8 * 2 go.
    assert merge_allocation(table, TRIAL, 2, partial(store_full_segment, objects)) == 16
    left = [row.key.sort.split("#")[2] for row in rows(table)]
    assert [left.count(f"{epoch:08d}") for epoch in (1, 2, 3)] == [24, 8, 24]
    assert sorted(read(table, objects)) == sorted(
        (stream, n) for stream in streams for n in (1, 2, 3)
    )


def test_merged_rows_are_bounded_and_full_rows_unchanged(
    table: SqliteTable, objects: ObjectStore
) -> None:
    random, offset = Random(3), 0
    for _ in range(60):
        # 4,000 random hexadecimal digits have 4 bits each, so compression leaves at least 2,000
        # bytes.
        texts = [random.randbytes(2_000).hex() for _ in range(3)]
        reports = [
            MetricReport(offset + n, 1, 0, {"note": text}) for n, text in enumerate(texts, 1)
        ]
        table.commit(list(segment_writes(TRIAL, STREAM, reports)))
        offset += 3
    merge_stream(table, TRIAL, STREAM, lambda put: put)
    sizes = [len(row.body) for row in rows(table)]
    assert max(sizes) < ROW_BYTES_MAX
    assert min(sizes[:-1]) >= FULL_BYTES
    before = rows(table)
    assert merge_rows(table, objects) == 0
    assert rows(table) == before


def chance(first: int, last: int) -> list[MetricReport]:
    """Reports that cannot be made much smaller: 2,000 bytes each."""
    random = Random(first)
    return [
        MetricReport(n, n, 0, {"note": random.randbytes(2_000).hex()}) for n in range(first, last)
    ]


def test_full_row_moves_reports_to_object_store(table: SqliteTable, tmp_path: Path) -> None:
    objects = DirectoryObjectStore(tmp_path, HmacUrlSigner(b"s" * 32))
    for n in range(1, 41):
        table.commit(list(segment_writes(TRIAL, STREAM, chance(n, n + 1))))
    # Together the rows reach FULL_BYTES, but the merged row is smaller and is merged again.
    while merge_rows(table, objects):
        pass
    [full] = rows(table)
    [kept] = objects.list_objects(ObjectKey(f"metrics/{TRIAL}"))
    assert report_count(full.body) == 40
    assert kept.size >= FULL_BYTES > 50 * len(full.body)
    written = [item for n in range(1, 41) for item in chance(n, n + 1)]
    assert list(to_segment(full).read_columns(objects).reports()) == written
    # A full row is not merged again, although the row is small without the reports.
    for n in range(41, 61):
        table.commit(list(segment_writes(TRIAL, STREAM, chance(n, n + 1))))
    while merge_rows(table, objects):
        pass
    assert [report_count(row.body) for row in rows(table)] == [40, 20]
    assert rows(table)[0] == full
    objects.delete(kept.key)
    assert len(to_segment(full).read_columns(objects)) == 0


def test_summary_stays_in_row(table: SqliteTable, objects: ObjectStore) -> None:
    numbers = Random(5)
    reports = [MetricReport(n, n, 0, {"x": numbers.random()}) for n in range(1, FULL_REPORTS + 1)]
    [put] = segment_writes(TRIAL, STREAM, reports)
    kept = store_full_segment(objects, put)
    assert content_digest(kept.body) is not None
    assert len(kept.body) < len(put.body) / 2
    found, given = decode_summary(kept.body), decode_summary(put.body)
    assert found is not None
    assert found == given


def test_repeated_segment_replaces_no_object(objects: ObjectStore) -> None:
    numbers = Random(6)
    reports = [MetricReport(n, n, 0, {"x": numbers.random()}) for n in range(1, FULL_REPORTS + 1)]
    [put] = segment_writes(TRIAL, STREAM, reports)
    before = {item.key for item in objects.list_objects(ObjectKey("metrics"))}
    kept = store_full_segment(objects, put)
    [key] = {item.key for item in objects.list_objects(ObjectKey("metrics"))} - before
    objects.put(key, b"of an earlier call")
    assert store_full_segment(objects, put) == kept
    assert b"".join(objects.get(key)) == b"of an earlier call"


def test_small_full_rows_stay_in_table(objects: ObjectStore) -> None:
    [put] = segment_writes(
        TRIAL, STREAM, [MetricReport(n, n, 0, {"x": 1}) for n in range(1, FULL_REPORTS + 1)]
    )
    assert store_full_segment(objects, put) == put


def test_failed_object_upload_leaves_rows_unchanged(table: SqliteTable) -> None:
    for n in range(1, 41):
        table.commit(list(segment_writes(TRIAL, STREAM, chance(n, n + 1))))
    before = rows(table)

    def store(put: Put) -> Put:
        raise OSError("the store cannot be reached")

    with pytest.raises(OSError, match="cannot be reached"):
        merge_stream(table, TRIAL, STREAM, store)
    assert rows(table) == before


def test_row_with_many_reports_is_full(table: SqliteTable, objects: ObjectStore) -> None:
    write(table, range(1, FULL_REPORTS + 1))
    write(table, [FULL_REPORTS + 1])
    write(table, [FULL_REPORTS + 2])
    assert merge_rows(table, objects) == 1
    assert len(rows(table)) == 2


def test_reports_are_rewritten_few_times(table: SqliteTable, objects: ObjectStore) -> None:
    rewritten = 0

    def count(writes: Sequence[Write]) -> bool:
        nonlocal rewritten
        rewritten += len(writes)
        return False

    counting = InterleavingTable(table, lambda: None, count)
    for n in range(1, 2001):
        write(table, [10 * n])
        if n % 48 == 0:
            merge_rows(counting, objects)
    # 2,000 rows are written once. Each merge rewrites hardly more than the 48 newest rows.
    assert rewritten < 2_000 * 1.2
    assert len(rows(table)) < 100
    assert [offset for _, offset in read(table, objects)] == [10 * n for n in range(1, 2001)]


@pytest.mark.parametrize("when", ["before", "after"])
def test_crash_during_merge_loses_no_reports(
    table: SqliteTable, objects: ObjectStore, when: str
) -> None:
    expected = []
    for n in range(1, 40):
        for stream in (STREAM, Stream("validation", 1, "0"), Stream("training", 1, "1")):
            write(table, [10 * n, 10 * n + 1], stream)
            expected += [(stream, 10 * n), (stream, 10 * n + 1)]
    crash_at = 0
    while True:
        crash_at += 1
        crashing = CrashingTable(table, crash_at, "before" if when == "before" else "after")
        try:
            merge_allocation(crashing, TRIAL, 1, partial(store_full_segment, objects))
        except Crash:
            assert sorted(read(table, objects)) == sorted(expected)
            continue
        break
    assert crash_at > 1
    assert sorted(read(table, objects)) == sorted(expected)
    assert len(rows(table)) == 3


@given(
    sizes=st.lists(st.integers(1, 5), min_size=2, max_size=30),
    torn_at=st.integers(0, 2_000),
    earlier=st.integers(0, 30),
)
def test_reads_during_merges_get_reports_once(
    objects: ObjectStore, sizes: list[int], torn_at: int, earlier: int
) -> None:
    with_rows = SqliteTable(":memory:")
    offsets, act = _write_rows(with_rows, objects, sizes, earlier)
    torn = TearingTable(with_rows, act, STREAM.sort_key(torn_at), None)
    assert [offset for _, offset in read(torn, objects)] == offsets
    assert [offset for _, offset in read(with_rows, objects)] == offsets
    with_rows.close()


@given(
    sizes=st.lists(st.integers(1, 5), min_size=2, max_size=60),
    cuts=st.lists(st.integers(0, 400), max_size=5),
    earlier=st.integers(0, 60),
)
def test_later_read_continues_at_offset(
    objects: ObjectStore, sizes: list[int], cuts: list[int], earlier: int
) -> None:
    """Each page is read after a merge, from the offset where the previous page ended."""
    table = SqliteTable(":memory:")
    offsets, act = _write_rows(table, objects, sizes, earlier)
    seen: list[int] = []
    for cut in [*sorted(cuts), 10**6]:
        last = seen[-1] if seen else 0
        place = find_start(table, TRIAL, STREAM, last) if seen else METRICS
        for segment in read_segments(table, TRIAL, place, group_range(STREAM.group)[1]):
            page = [
                offset
                for offset in segment.read_columns(objects)
                .reports_after(seen[-1] if seen else 0)
                .offsets
            ]
            seen += [offset for offset in page if offset <= cut]
        act("")
    assert seen == offsets
    table.close()


def _write_rows(
    table: SqliteTable, objects: ObjectStore, sizes: list[int], earlier: int
) -> tuple[list[int], Callable[[str], object]]:
    """Write rows of `sizes` reports, merge after row `earlier`, and return offsets and a merge
    function.
    """
    offsets: list[int] = []
    for n, size in enumerate(sizes):
        call = [10 * (len(offsets) + k + 1) for k in range(size)]
        offsets += call
        write(table, call)
        if n == earlier:
            merge_rows(table, objects)
    return offsets, lambda partition: merge_rows(table, objects)
