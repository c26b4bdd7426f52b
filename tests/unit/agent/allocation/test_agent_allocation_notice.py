from __future__ import annotations

from typing import Any

import pytest

from detcloud.agent.allocation.directive_merge import merge_notice
from detcloud.shared.notices import Notice


@pytest.mark.parametrize(
    ("clusters", "expected"),
    [
        (None, 2000),
        ({"deadline_ms": None, "reason": "priority"}, 2000),
        ({"deadline_ms": 1000, "reason": "drain"}, 1000),
        ({"deadline_ms": 3000, "reason": "drain"}, 2000),
    ],
)
def test_the_earlier_deadline_wins(clusters: dict[str, Any] | None, expected: int) -> None:
    merged = merge_notice({"revision": 4, "preempt": clusters}, Notice(2000, "spot"))
    assert merged["preempt"]["deadline_ms"] == expected
    assert merged["revision"] == 4
