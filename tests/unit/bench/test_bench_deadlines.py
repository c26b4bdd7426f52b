"""The figures of deadlines on spot machines, measured on few traces."""

import pytest

from bench.deadlines import Replays, deadlines, replays
from bench.figures import QUICK


@pytest.mark.nightly
def test_few_traces_meet_all_deadlines_near_the_optimum() -> None:
    rows = list(deadlines(QUICK))
    # A row for deadlines, 5 slacks and 3 changeovers against greedy, and 3 slacks of at least 1.5.
    assert len(rows) == 1 + 5 * 3 + 3 * 3
    assert rows[0].verdict == "met"
    assert rows[0].beside == f"{15 * QUICK.spot_traces} runs of reserved slack"
    assert all(row.verdict == "met" for row in rows if row.what.startswith("above the optimum"))


def test_replay_is_reproducible() -> None:
    first, second = (replays(3, 1.5, 5) for _ in range(2))
    assert isinstance(first, Replays)
    assert first == second
    assert all(first.met.values())
    assert first.optimum <= min(first.costs.values()) + 1e-9
