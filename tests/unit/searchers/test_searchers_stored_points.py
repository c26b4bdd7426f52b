import pytest

from control_plane.searchers.blob_store import MemoryBlobStore
from control_plane.searchers.stored_points import Point, load_point, store_point


def test_stored_point_reads_back() -> None:
    blobs = MemoryBlobStore()
    point = Point({"lr": 0.1, "layers": [1, 2], "optimizer": {"name": "adam"}}, "some-id")
    store_point(blobs, 7, point)
    store_point(blobs, 8, Point({}))
    assert load_point(blobs, 7) == point
    assert load_point(blobs, 8) == Point({}, "")


def test_missing_point_is_error() -> None:
    with pytest.raises(KeyError, match="number 3"):
        load_point(MemoryBlobStore(), 3)
