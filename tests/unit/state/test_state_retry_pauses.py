"""Pauses before a request is sent again: full jitter below a ceiling that doubles, and an end."""

import pytest

from control_plane.state.retry_pauses import TRIES_MAX, RetryPauses
from control_plane.state.table import Unavailable

CALLERS = 200
# In seconds: 25 ms, and twice as much each time.
CEILINGS = [0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0]


def pauses_of_a_caller() -> list[float]:
    slept: list[float] = []
    pauses = RetryPauses(slept.append)
    for _ in CEILINGS:
        pauses.wait("throttled")
    with pytest.raises(Unavailable, match=rf"throttled \({TRIES_MAX} tries\)"):
        pauses.wait("throttled")
    return slept


def test_those_who_were_refused_together_do_not_come_back_together() -> None:
    callers = [pauses_of_a_caller() for _ in range(CALLERS)]
    for ceiling, pauses in zip(CEILINGS, zip(*callers, strict=True), strict=True):
        assert all(0 <= pause <= ceiling for pause in pauses)
        # Of 200 in [0, 1] a tenth is expected to be in each tenth; that one has none is 1 in 10^9.
        tenths = {int(10 * pause / ceiling) for pause in pauses if pause < ceiling}
        assert tenths == set(range(10))
