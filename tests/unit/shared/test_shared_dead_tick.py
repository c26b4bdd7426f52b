"""The decision that a cluster's tick is dead."""

import pytest

from detcloud.shared.dead_tick import CONFIRM_SECONDS, TICK_SECONDS_MAX, TickWatch

OLD_MS = TICK_SECONDS_MAX * 1000 + 1


class Watch(TickWatch):
    """A watch with a clock in seconds that tests set by `now`."""

    def __init__(self) -> None:
        self.now = 5_000.0
        super().__init__(lambda: self.now)

    def record_for(self, seconds: int, age_ms: object) -> bool:
        """Record answers with the same age, one each second; return whether the tick is dead."""
        for _ in range(seconds):
            self.record_age(age_ms)
            self.now += 1
        self.record_age(age_ms)
        return self.is_dead


def test_tick_is_dead_after_answers_of_five_minutes_agree() -> None:
    assert not Watch().record_for(CONFIRM_SECONDS - 1, OLD_MS)
    assert Watch().record_for(CONFIRM_SECONDS, OLD_MS)


# Older servers and clusters without a pass send no age.
@pytest.mark.parametrize("age_ms", [None, 0, OLD_MS - 1, "old", 1e12])
def test_low_age_or_no_age_keeps_and_revives_the_tick(age_ms: object) -> None:
    watch = Watch()
    assert not watch.record_for(2 * CONFIRM_SECONDS, age_ms)
    assert not watch.record_for(CONFIRM_SECONDS - 1, OLD_MS)
    watch.record_age(age_ms)
    assert not watch.record_for(CONFIRM_SECONDS - 1, OLD_MS)
    assert watch.record_for(1, OLD_MS)
    watch.record_age(age_ms)
    assert not watch.is_dead


def test_single_answers_around_an_outage_confirm_nothing_by_time_alone() -> None:
    watch = Watch()
    watch.record_age(OLD_MS)
    watch.now += 10 * CONFIRM_SECONDS
    assert not watch.is_dead
