"""The depth of JSON values, counted in objects and lists within each other."""

from __future__ import annotations

from typing import Any

import pytest

from detcloud.shared.json_depth import JSON_DEPTH_MAX, is_too_deep


def nest(depth: int, leaf: Any) -> Any:
    """Return `leaf` within `depth` alternating lists and objects."""
    for level in range(depth):
        leaf = {"a": leaf, "b": 1} if level % 2 else [0, leaf]
    return leaf


@pytest.mark.parametrize(
    ("value", "is_deep"),
    [
        (1, False),
        ("x" * 1000, False),
        ({}, False),
        (nest(JSON_DEPTH_MAX, 1), False),
        (nest(JSON_DEPTH_MAX, []), True),
        (nest(JSON_DEPTH_MAX + 1, 1), True),
        (nest(100_000, 1), True),
        ([nest(3, 1)] * 1000, False),
    ],
    ids=[
        "number",
        "text",
        "empty",
        "at the limit",
        "an empty list more",
        "a level more",
        "far",
        "wide",
    ],
)
def test_values_beyond_the_depth_limit_are_too_deep(value: object, is_deep: bool) -> None:
    assert is_too_deep(value) is is_deep
