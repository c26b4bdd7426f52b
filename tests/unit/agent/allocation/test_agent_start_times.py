"""The durations of a trial's start on a machine."""

import pytest

from detcloud.agent.allocation.start_times import StartTimes


class Clock:
    seconds = 1_000.0

    def __call__(self) -> float:
        return self.seconds


def test_phases_add_up_and_an_open_phase_ends() -> None:
    clock = Clock()
    times = StartTimes(lambda: 990.0, clock)
    with times.measure("code"):
        clock.seconds += 0.5
    with times.measure("packages"):
        clock.seconds += 1
    times.begin("packages")
    clock.seconds += 2
    durations = times.durations()
    assert {name: durations[name] for name in ("code", "packages")} == {
        "code": 500,
        "packages": 3_000,
    }
    # The agent enrolled at 990 s, and it is 1,003.5 s.
    assert durations["agent"] == 13_500
    assert durations.get("machine", 1) > 0


def test_failed_phase_counts() -> None:
    clock = Clock()
    times = StartTimes(clock=clock)

    def pull() -> None:
        with times.measure("image"):
            clock.seconds += 4
            raise OSError("no disk")

    with pytest.raises(OSError, match="disk"):
        pull()
    assert times.durations()["image"] == 4_000


def test_adopted_trial_has_no_durations() -> None:
    assert StartTimes(lambda: 990.0).durations() == {}


def test_age_of_an_agent_that_has_not_enrolled_is_missing() -> None:
    times = StartTimes()
    with times.measure("code"):
        pass
    assert "agent" not in times.durations()
