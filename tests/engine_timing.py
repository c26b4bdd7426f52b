"""The timing of engines and collectors in tests: no time passes, so that no budget runs out.

A machine that stalls for seconds would otherwise end a pass in its middle, and what the test looks
for would be left to a recovery pass that it does not run. Tests of the budgets bring their own
clock.
"""

from control_plane.engine.engine_timing import EngineTiming


def _no_time() -> float:
    return 0.0


UNHURRIED = EngineTiming(monotonic_seconds=_no_time)
