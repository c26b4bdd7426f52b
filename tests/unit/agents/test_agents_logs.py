from collections.abc import Iterator
from pathlib import Path

import pytest

from control_plane.agents.logs import NAMESPACE, SMALL_BYTES_MAX, TrialLogs
from control_plane.agents.sessions import LogChunk
from control_plane.objects.directory import DirectoryObjectStore
from control_plane.objects.signing import HmacUrlSigner
from control_plane.objects.store import ObjectKey
from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import Conflict

LARGE = b"x" * (SMALL_BYTES_MAX + 1)


class Logs:
    """Logs of trial 7 on a real table and store."""

    def __init__(self, root: Path) -> None:
        self.table = SqliteTable(":memory:")
        self.objects = DirectoryObjectStore(root, HmacUrlSigner(b"s" * 32))
        self.kept = TrialLogs(self.table, self.objects)

    def store(self, epoch: int, offset: int, text: bytes) -> None:
        put = self.kept.store_chunk(7, LogChunk(f"7.{epoch}", offset, text))
        self.table.commit((put,))

    def read(self, after: int, bytes_max: int = 100, *, ended: bool = False) -> tuple[str, int]:
        found = self.kept.read_text(7, 2, after, bytes_max, ended)
        return found.text, found.end


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[Logs]:
    made = Logs(tmp_path)
    yield made
    made.table.close()


def test_offsets_span_all_allocations(logs: Logs) -> None:
    # Bytes 0-3 and 4-6 of the first allocation, then 0-2 of the second: 10 in all.
    logs.store(1, 0, b"abcd")
    logs.store(1, 4, b"efg")
    logs.store(2, 0, b"xyz")
    assert logs.read(0) == ("abcdefgxyz", 10)
    for after in range(11):
        assert logs.read(after) == ("abcdefgxyz"[after:], 10)
        assert logs.read(after, 2) == ("abcdefgxyz"[after : after + 2], min(10, after + 2))


def test_offset_beyond_end_reads_no_text(logs: Logs) -> None:
    logs.store(1, 0, b"abc")
    assert logs.read(99) == ("", 99)


def test_trial_without_log_reads_empty(logs: Logs) -> None:
    assert logs.read(0) == ("", 0)


def test_incomplete_character_is_left_for_next_read(logs: Logs) -> None:
    # The euro sign has three bytes.
    logs.store(1, 0, "a€".encode())
    assert logs.read(0, 3) == ("a", 1)
    assert logs.read(1, 4) == ("€", 4)


def test_incomplete_character_is_shown_at_end_of_log(logs: Logs) -> None:
    logs.store(1, 0, b"a\xe2\x82")
    assert logs.read(0) == ("a", 1)
    assert logs.read(0, ended=True) == ("a�", 3)


def test_tail_begins_with_whole_character(logs: Logs) -> None:
    logs.store(1, 0, "a€b".encode())
    # Of 5 bytes the last 3 begin in the middle of the sign.
    assert logs.kept.read_tail(7, 1, 3, False).text == "b"
    assert logs.kept.read_tail(7, 1, 4, False).text == "€b"
    assert logs.kept.read_tail(7, 1, 99, False).text == "a€b"


@pytest.mark.parametrize("text", [b"abc", LARGE])
def test_repeated_chunk_changes_neither_log_nor_objects(logs: Logs, text: bytes) -> None:
    logs.store(1, 0, text)
    logs.store(1, 0, text)
    assert logs.read(0, 10_000) == (text.decode(), len(text))
    assert len(list(logs.objects.list_objects(ObjectKey(NAMESPACE)))) == (text is LARGE)


def test_chunks_of_any_bytes_are_read_back(logs: Logs) -> None:
    small, offset = bytes(range(256)) * (SMALL_BYTES_MAX // 256), 0
    for text in (small, small + b"\xff", small, LARGE, b"end"):
        logs.store(1, offset, text)
        offset += len(text)
    found = [
        logs.kept.read_content(7, chunk, chunk.start, chunk.end)
        for chunk in logs.kept.read_chunks(7, 1, 0, offset)
    ]
    assert found == [small, small + b"\xff", small, LARGE, b"end"]
    second = next(iter(logs.kept.read_chunks(7, 1, len(small) - 2, len(small))))
    assert logs.kept.read_content(7, second, len(small) - 2, len(small)) == small[-2:]
    # Only the two chunks above SMALL_BYTES_MAX are objects.
    assert len(list(logs.objects.list_objects(ObjectKey(NAMESPACE)))) == 2


def test_deleted_object_keeps_offsets(logs: Logs) -> None:
    logs.store(1, 0, LARGE)
    logs.store(1, len(LARGE), b"def")
    logs.objects.delete(ObjectKey(f"logs/7/7.1/0-{len(LARGE)}"))
    assert logs.read(len(LARGE) - 2) == ("  def", len(LARGE) + 3)


def node_chunk(rank: int, offset: int, text: bytes, *marks: tuple[int, int]) -> LogChunk:
    return LogChunk("7.1", offset, text, marks, rank, nodes=2)


def test_gang_nodes_write_one_log_with_ranks(logs: Logs) -> None:
    for chunk in (
        node_chunk(0, 0, b"zero\n"),
        node_chunk(1, 0, b"one\n\ntwo\n"),
        node_chunk(1, 9, b"[rank=3] of its own\n"),
        node_chunk(0, 5, b"half a line"),
        node_chunk(0, 16, b" and the rest\n"),
    ):
        logs.table.commit((logs.kept.store_chunk(7, chunk),))
    text, _ = logs.read(0, 1_000)
    assert text.splitlines() == [
        "zero",
        "[rank=1] one",
        "[rank=1] ",
        "[rank=1] two",
        "[rank=3] of its own",
        "half a line",
        " and the rest",
    ]


def test_lines_of_gang_nodes_keep_times(logs: Logs) -> None:
    # In the node's log the lines begin at 0, 2 and 4, in the gang's, where each
    # has 9 bytes more, at 2, 2 + 11 and 2 + 22.
    logs.table.commit((logs.kept.store_chunk(7, node_chunk(0, 0, b"z\n", (0, 500))),))
    chunk = node_chunk(1, 0, b"a\nb\nc\n", (0, 1000), (4, 2000))
    logs.table.commit((logs.kept.store_chunk(7, chunk),))
    found = [mark for stored in logs.kept.read_chunks(7, 1, 0, 100) for mark in stored.marks]
    assert found == [(0, 500), (2, 1000), (2 + 22, 2000)]


def test_repeated_chunk_replaces_no_object(logs: Logs) -> None:
    # The service account of the API may create objects in Google Cloud, but not delete or replace.
    key = ObjectKey(f"{NAMESPACE}/7/7.1/0-{len(LARGE)}")
    logs.kept.store_chunk(7, LogChunk("7.1", 0, LARGE))
    logs.objects.put(key, b"y" * len(LARGE))
    logs.store(1, 0, LARGE)
    assert b"".join(logs.objects.get(key)) == b"y" * len(LARGE)


def test_second_node_at_same_offset_conflicts(logs: Logs) -> None:
    first = logs.kept.store_chunk(7, node_chunk(0, 0, b"zero\n"))
    second = logs.kept.store_chunk(7, node_chunk(1, 0, b"one\n"))
    logs.table.commit((first,))
    with pytest.raises(Conflict):
        logs.table.commit((second,))
    logs.table.commit((logs.kept.store_chunk(7, node_chunk(1, 0, b"one\n")),))
    assert logs.read(0, 1_000)[0] == "zero\n[rank=1] one\n"
