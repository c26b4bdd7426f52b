"""Runs of simulated trials that hang."""

from collections.abc import Callable, Mapping
from typing import Any

from control_plane.actors import addresses
from simulator.checks.state_checker import StateChecker
from simulator.faults.fault_state import FaultState

HANGS_MAX = 1
"""The most hangs of a trial, each of which may use up a restart."""
HANG_MS_MAX = 7_200_000
"""The longest time after which a hanging run works again, if the cluster only notifies."""
ENDLESS_MS = 30 * 24 * 3_600_000
"""The time after which a hanging run works again, if the cluster restarts hanging runs."""


def hang_sampler(
    faults: FaultState, checker: StateChecker
) -> Callable[[Mapping[str, Any]], int | None]:
    """Return a function that draws whether a run hangs, and the length of the hang in ms.

    The argument of the function is the specification of the run. The result is None for a run that
    does not hang. A trial hangs at most HANGS_MAX times.
    """
    hung: dict[int, int] = {}

    def draw(spec: Mapping[str, Any]) -> int | None:
        trial_id = spec["trial_id"]
        if hung.get(trial_id, 0) >= HANGS_MAX or "hang_timeout_ms" not in spec:
            return None
        if not faults.draw_fault("hangs", faults.rates.hangs):
            return None
        hung[trial_id] = hung.get(trial_id, 0) + 1
        trial = checker.actor_state(addresses.trial(trial_id))
        if trial.settings.restarts_hangs:
            return ENDLESS_MS
        return faults.random.randint(1, HANG_MS_MAX)

    return draw
