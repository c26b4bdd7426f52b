from collections.abc import Iterator
from pathlib import Path

import pytest

from control_plane.agents.logs import NAMESPACE, TrialLogs
from control_plane.agents.sessions import LogChunk
from control_plane.api.signing import Signer
from control_plane.objects.directory import DirectoryStore
from control_plane.objects.store import Key
from control_plane.state.sqlite import SqliteTable


class Logs:
    """Logs of trial 7 on a real table and store."""

    def __init__(self, root: Path) -> None:
        self.table = SqliteTable(":memory:")
        self.objects = DirectoryStore(root, Signer(b"s" * 32))
        self.kept = TrialLogs(self.table, self.objects)

    def store(self, epoch: int, offset: int, text: bytes) -> None:
        put = self.kept.store(7, LogChunk(f"7.{epoch}", offset, text))
        self.table.commit((put,))

    def read(self, after: int, bytes_max: int = 100, *, ended: bool = False) -> tuple[str, int]:
        found = self.kept.read(7, 2, after, bytes_max, ended)
        return found.text, found.end


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[Logs]:
    made = Logs(tmp_path)
    yield made
    made.table.close()


def test_offsets_count_over_all_allocations(logs: Logs) -> None:
    # Bytes 0-3 and 4-6 of the first allocation, then 0-2 of the second: 10 in all.
    logs.store(1, 0, b"abcd")
    logs.store(1, 4, b"efg")
    logs.store(2, 0, b"xyz")
    assert logs.read(0) == ("abcdefgxyz", 10)
    for after in range(11):
        assert logs.read(after) == ("abcdefgxyz"[after:], 10)
        assert logs.read(after, 2) == ("abcdefgxyz"[after : after + 2], min(10, after + 2))


def test_a_place_behind_the_end_is_empty(logs: Logs) -> None:
    logs.store(1, 0, b"abc")
    assert logs.read(99) == ("", 99)


def test_a_trial_without_a_log_has_an_empty_one(logs: Logs) -> None:
    assert logs.read(0) == ("", 0)


def test_a_character_that_is_cut_waits_for_its_rest(logs: Logs) -> None:
    # The euro sign has three bytes.
    logs.store(1, 0, "a€".encode())
    assert logs.read(0, 3) == ("a", 1)
    assert logs.read(1, 4) == ("€", 4)


def test_half_a_character_at_the_very_end_is_shown_once_nothing_follows(logs: Logs) -> None:
    logs.store(1, 0, b"a\xe2\x82")
    assert logs.read(0) == ("a", 1)
    assert logs.read(0, ended=True) == ("a�", 3)


def test_the_tail_begins_with_a_whole_character(logs: Logs) -> None:
    logs.store(1, 0, "a€b".encode())
    # Of 5 bytes the last 3 begin in the middle of the sign.
    assert logs.kept.tail(7, 1, 3, False).text == "b"
    assert logs.kept.tail(7, 1, 4, False).text == "€b"
    assert logs.kept.tail(7, 1, 99, False).text == "a€b"


def test_storing_a_chunk_again_changes_nothing(logs: Logs) -> None:
    logs.store(1, 0, b"abc")
    logs.store(1, 0, b"abc")
    assert logs.read(0) == ("abc", 3)
    assert [listed.key.text for listed in logs.objects.list(Key(NAMESPACE))] == ["logs/7/7.1/0-3"]


def test_a_chunk_whose_object_is_gone_keeps_the_offsets(logs: Logs) -> None:
    logs.store(1, 0, b"abc")
    logs.store(1, 3, b"def")
    logs.objects.delete(Key("logs/7/7.1/0-3"))
    assert logs.read(1) == ("  def", 6)
