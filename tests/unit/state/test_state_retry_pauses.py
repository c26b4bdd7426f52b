"""The pauses before a request is repeated: full jitter below a ceiling that doubles."""

import pytest

from control_plane.state.retry_pauses import TRIES_MAX, RetryPauses
from control_plane.state.table import Unavailable

CALLERS = 200
# The ceilings in seconds: 25 ms, doubled each time, at most 1 s.
CEILINGS = [0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0]


def pauses_of_a_caller() -> list[float]:
    slept: list[float] = []
    pauses = RetryPauses(slept.append)
    for _ in CEILINGS:
        pauses.wait("throttled")
    with pytest.raises(Unavailable, match=rf"throttled \({TRIES_MAX} tries\)"):
        pauses.wait("throttled")
    return slept


def test_pauses_are_spread_below_a_doubling_ceiling() -> None:
    callers = [pauses_of_a_caller() for _ in range(CALLERS)]
    for ceiling, pauses in zip(CEILINGS, zip(*callers, strict=True), strict=True):
        assert all(0 <= pause <= ceiling for pause in pauses)
        # Each tenth of the range should have a tenth of the 200 pauses. An empty tenth has a
        # probability of 10^-9.
        tenths = {int(10 * pause / ceiling) for pause in pauses if pause < ceiling}
        assert tenths == set(range(10))
