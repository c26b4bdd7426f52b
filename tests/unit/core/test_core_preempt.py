import time

import pytest

from detcloud.core import PreemptContext
from detcloud.shared.trial_directory import Directives, Preemption
from tests.patience import wait_until


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


@pytest.mark.parametrize("check", ["should_preempt", "must_stop_at_next_batch"])
def test_directives_are_read_at_most_every_100_ms(check: str) -> None:
    reads: list[float] = []

    def read() -> Directives:
        reads.append(time.monotonic())
        return Directives()

    preempt = PreemptContext(read)
    began: list[float] = []
    while len(reads) < 4:
        before = time.monotonic()
        getattr(preempt, check)()
        if len(reads) > len(began):
            began.append(before)
    # The interval between two reads counts from the check that reads.
    pauses = [later - earlier for earlier, later in zip(began, reads[1:], strict=False)]
    assert min(pauses) >= 0.1


def test_a_local_request_is_seen_immediately() -> None:
    preempt = PreemptContext(Directives)
    assert not preempt.should_preempt()
    preempt.request(Preemption(1, "SIGTERM"))
    assert preempt.must_stop_at_next_batch()


def test_a_withdrawn_unseen_request_is_ignored() -> None:
    wishes = [Directives(preempt=Preemption())]
    preempt = PreemptContext(lambda: wishes.pop() if wishes else Directives())
    assert not preempt.must_stop_at_next_batch()
    assert preempt.is_requested()
    wait_until(lambda: not preempt.is_requested())
    assert not preempt.should_preempt()
    assert not preempt.was_seen
