"""The figures of deadlines on spot machines, on few traces."""

from bench.deadlines import Replays, deadlines, replays
from bench.figures import QUICK


def test_few_traces_already_meet_every_deadline_and_come_near_the_optimum() -> None:
    rows = list(deadlines(QUICK))
    # One of deadlines; 5 slacks and 3 changeovers against greedy; 3 slacks of 1.5 and more.
    assert len(rows) == 1 + 5 * 3 + 3 * 3
    assert rows[0].verdict == "met"
    assert rows[0].beside == f"{15 * QUICK.spot_traces} runs of reserved slack"
    assert all(row.verdict == "met" for row in rows if row.what.startswith("above the optimum"))


def test_a_replay_is_the_same_again() -> None:
    once, again = (replays(3, 1.5, 5) for _ in range(2))
    assert isinstance(once, Replays)
    assert once == again
    assert all(once.met.values())
    assert once.optimum <= min(once.costs.values()) + 1e-9
