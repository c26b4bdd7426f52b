import time

import pytest

from detcloud.core import PreemptContext
from detcloud.shared.trial_directory import Directives, Preemption


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 100.0
        monkeypatch.setattr(time, "monotonic", lambda: self.seconds)


@pytest.mark.parametrize(
    ("wish", "should", "at_next_batch"),
    [
        (None, False, False),
        (Preemption(None, "pause"), True, False),
        (Preemption(5, "spot"), True, True),
    ],
)
def test_only_a_deadline_stops_at_the_next_batch(
    wish: Preemption | None, should: bool, at_next_batch: bool
) -> None:
    preempt = PreemptContext(lambda: Directives(preempt=wish))
    assert preempt.must_stop_at_next_batch() is at_next_batch
    assert preempt.was_seen is at_next_batch
    assert preempt.should_preempt() is should
    assert preempt.was_seen is should


def test_the_directives_are_looked_at_every_100_ms_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, looks = Clock(monkeypatch), []

    def read() -> Directives:
        looks.append(clock.seconds)
        return Directives()

    preempt = PreemptContext(read)
    for _ in range(1000):
        preempt.should_preempt()
        preempt.must_stop_at_next_batch()
        clock.seconds += 0.001
    # 1000 asks over 1 s: one look at the start and one after each 100 ms. The sum of the
    # thousandths may fall short of a tenth by its rounding, which costs a look at most.
    assert len(looks) in (9, 10)


def test_a_request_of_the_process_itself_is_seen_at_once() -> None:
    preempt = PreemptContext(Directives)
    assert not preempt.should_preempt()
    preempt.request(Preemption(1, "SIGTERM"))
    assert preempt.must_stop_at_next_batch()


def test_a_wish_that_was_taken_back_unseen_leaves_no_trace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    wishes = [Directives(preempt=Preemption()), Directives()]
    preempt = PreemptContext(lambda: wishes.pop(0))
    assert not preempt.must_stop_at_next_batch()
    clock.seconds += 1
    assert not preempt.should_preempt()
    assert not preempt.was_seen
