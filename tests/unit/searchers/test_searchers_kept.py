import pytest

from control_plane.searchers.kept import Point, keep, kept
from control_plane.searchers.parts import PartsInMemory


def test_a_kept_point_reads_back_as_it_was_kept() -> None:
    parts = PartsInMemory()
    point = Point({"lr": 0.1, "layers": [1, 2], "optimizer": {"name": "adam"}}, "some-id")
    keep(parts, 7, point)
    keep(parts, 8, Point({}))
    assert kept(parts, 7) == point
    assert kept(parts, 8) == Point({}, "")


def test_a_point_that_nobody_keeps_is_an_error() -> None:
    with pytest.raises(KeyError, match="number 3"):
        kept(PartsInMemory(), 3)
