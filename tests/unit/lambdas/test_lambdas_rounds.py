"""The steps of a tick: none holds up another."""

from functools import partial

import pytest

from lambdas.rounds import MINUTE_MS, RoundFailed, Step, run_round


def failing() -> None:
    raise OSError("away")


def test_a_step_that_fails_holds_up_no_other_and_is_named() -> None:
    done: list[str] = []
    steps = [
        Step("leases", failing),
        Step("books", lambda: done.append("books")),
        Step("sweep", failing),
    ]
    with pytest.raises(RoundFailed, match="leases, sweep"):
        run_round(steps, 0)
    assert done == ["books"]


def test_a_step_is_done_in_the_minutes_that_are_its_own() -> None:
    done: list[int] = []
    for minute in range(12):
        run_round([Step("audit", partial(done.append, minute), 5)], minute * MINUTE_MS + 17)
    assert done == [0, 5, 10]
