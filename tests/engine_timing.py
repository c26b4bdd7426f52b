"""The timing of engines and collectors in tests: no time passes, so that no budget runs out.

With real time, a stalled machine would end a pass early, and the test would run no recovery pass
for the rest. Tests of the budgets use a clock of their own.
"""

from control_plane.engine.engine_timing import EngineTiming


def _no_time() -> float:
    return 0.0


UNHURRIED = EngineTiming(monotonic_seconds=_no_time)
