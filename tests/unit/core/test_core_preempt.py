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


def test_directives_are_read_at_most_every_100_ms(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, reads = Clock(monkeypatch), []

    def read() -> Directives:
        reads.append(clock.seconds)
        return Directives()

    preempt = PreemptContext(read)
    for _ in range(1000):
        preempt.should_preempt()
        preempt.must_stop_at_next_batch()
        clock.seconds += 0.001
    # 1000 checks over 1 s: a read at the start and a read after every 100 ms. The sum of the
    # thousandths may be rounded below a tenth, which costs at most a single read.
    assert len(reads) in (9, 10)


def test_a_local_request_is_seen_immediately() -> None:
    preempt = PreemptContext(Directives)
    assert not preempt.should_preempt()
    preempt.request(Preemption(1, "SIGTERM"))
    assert preempt.must_stop_at_next_batch()


def test_a_withdrawn_unseen_request_is_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    wishes = [Directives(preempt=Preemption()), Directives()]
    preempt = PreemptContext(lambda: wishes.pop(0))
    assert not preempt.must_stop_at_next_batch()
    clock.seconds += 1
    assert not preempt.should_preempt()
    assert not preempt.was_seen
