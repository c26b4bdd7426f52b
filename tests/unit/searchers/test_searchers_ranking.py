"""The order-statistic tree against a sorted list."""

import random
from bisect import bisect_left, bisect_right

import pytest

from control_plane.searchers.halving.ranking import LEAF_MAX, Ranking, Result
from tests.unit.searchers.recording_blob_store import RecordingBlobStore


@pytest.mark.parametrize("before_equals", [False, True])
@pytest.mark.parametrize("metrics", [3, 1_000_000])
def test_results_are_sorted_like_list(before_equals: bool, metrics: int) -> None:
    chance = random.Random(7)
    blobs, expected = RecordingBlobStore(), list[Result]()
    bisect = bisect_left if before_equals else bisect_right
    for trial in range(9_000):
        if trial % 50 == 0:
            # The ranking depends only on the blobs.
            ranking = Ranking(blobs, "rung")
        result = Result(float(chance.randrange(metrics)), trial)
        place = bisect(expected, result.metric, key=lambda known: known.metric)
        expected.insert(place, result)
        assert ranking.insert(result, before_equals=before_equals) == place
        index = chance.randrange(len(expected))
        assert ranking.result_at(index) == expected[index]
    assert len(Ranking(blobs, "rung")) == 9_000
    assert list(Ranking(blobs, "rung")) == expected


def test_removes_result_of_trial() -> None:
    chance = random.Random(7)
    blobs, expected = RecordingBlobStore(), list[Result]()
    ranking = Ranking(blobs, "rung")
    for trial in range(2_000):
        result = Result(chance.random(), trial)
        expected.append(result)
        ranking.insert(result)
    expected.sort()
    while expected:
        gone = expected.pop(chance.randrange(len(expected)))
        assert ranking.remove(gone.trial)
        assert not ranking.remove(gone.trial)
        assert len(ranking) == len(expected)
        if len(expected) % 100 == 0:
            ranking = Ranking(blobs, "rung")
            assert list(ranking) == expected
    assert ranking.insert(Result(1.0, 5)) == 0


@pytest.mark.parametrize("order", ["falling", "rising", "equal"])
def test_nodes_stay_small_for_any_order_of_results(order: str) -> None:
    blobs = RecordingBlobStore()
    ranking = Ranking(blobs, "rung")
    for trial in range(5_000):
        metric = {"falling": -trial, "rising": trial, "equal": 0}[order]
        ranking.insert(Result(float(metric), trial))
    assert max(map(len, blobs.contents.values())) <= 1_000
    assert len(blobs.contents) > 5_000 / LEAF_MAX


def test_insertion_among_100000_results_writes_five_small_blobs() -> None:
    chance = random.Random(7)
    blobs = RecordingBlobStore()
    ranking = Ranking(blobs, "rung")
    for trial in range(100_000):
        ranking.insert(Result(chance.random(), trial))
    assert sum(map(len, blobs.contents.values())) / 100_000 < 20
    blobs.written.clear()
    for trial in range(1_000):
        ranking.insert(Result(chance.random(), 100_000 + trial))
    # A split writes additional nodes.
    assert len(blobs.written) < 5_200
    assert max(map(len, blobs.contents.values())) < 300


def test_index_out_of_range_is_error() -> None:
    ranking = Ranking(RecordingBlobStore(), "rung")
    with pytest.raises(IndexError):
        ranking.result_at(0)
    ranking.insert(Result(1.0, 0))
    for index in (-1, 1):
        with pytest.raises(IndexError):
            ranking.result_at(index)
