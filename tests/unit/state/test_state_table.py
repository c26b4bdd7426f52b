from collections import Counter
from zlib import crc32

import pytest

from control_plane.state.table import SHARDS, Conflict, Key, row_bytes, shard_of


def test_shard_of_a_partition_is_the_same_in_every_process() -> None:
    """Python's own hash would change with each start."""
    assert shard_of("trial#1") == crc32(b"trial#1") % 16
    assert SHARDS == 16


def test_actors_spread_over_all_shards() -> None:
    counts = Counter(shard_of(f"trial#{n}") for n in range(1_600))
    assert len(counts) == SHARDS
    # The expected number is 100 for each shard, with a standard deviation of about 10.
    assert all(50 < count < 150 for count in counts.values())


@pytest.mark.parametrize(
    ("key", "body", "expected"),
    [
        (Key("ab", "c"), b"", 67),  # 2 + 1 + 0 + 64
        (Key("ab", "é"), b"12345", 73),  # 2 + 2 + 5 + 64
    ],
)
def test_row_bytes_counts_keys_body_and_numbers(key: Key, body: bytes, expected: int) -> None:
    assert row_bytes(key, body) == expected


def test_conflict_names_the_row() -> None:
    assert str(Conflict(Key("trial#1", "M"))) == "the condition on row trial#1 / M did not hold"
