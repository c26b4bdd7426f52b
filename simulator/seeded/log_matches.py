"""Lines of simulated logs that match log policies."""

from collections.abc import Callable, Mapping
from typing import Any

from control_plane.actors import addresses
from control_plane.actors.messages.pool import PoolSettings
from control_plane.actors.messages.trial_logs import CANCEL_RETRIES, EXCLUDE_NODE
from control_plane.actors.pool.state import PoolState
from control_plane.actors.trial.state import TrialState
from simulator.checks.state_checker import StateChecker
from simulator.faults.fault_state import FaultState

MACHINES_LEFT = 2
"""The machines of a static pool that a trial may still use after an exclusion."""


def log_match_sampler(
    faults: FaultState, checker: StateChecker, pools: Mapping[str, PoolSettings]
) -> Callable[[Mapping[str, Any]], str]:
    """Return a function that draws the action of a policy that a line of a run matches.

    The argument of the function is the specification of the run. The result is "" if no line
    matches.
    """

    def draw(spec: Mapping[str, Any]) -> str:
        if not faults.draw_fault("matching_logs", faults.rates.matching_logs):
            return ""
        trial = checker.actor_state(addresses.trial(spec["trial_id"]))
        if faults.random.random() < 0.3:
            return CANCEL_RETRIES
        return EXCLUDE_NODE if _may_exclude(trial, checker, pools) else ""

    return draw


def _may_exclude(
    trial: TrialState, checker: StateChecker, pools: Mapping[str, PoolSettings]
) -> bool:
    """Return whether the trial can still run if the pool lacks another machine.

    A pool with a cloud gets other machines. A static pool needs machines of any size for the trial,
    so the trial must have at most one slot.
    """
    pool = trial.settings.pool
    if pools[pool].provider:
        return True
    state = checker.actor_state(addresses.pool(pool))
    machines = state.agents if isinstance(state, PoolState) else 0
    left = machines - len(trial.excluded_agents) - 1
    return trial.settings.slots <= 1 and left >= MACHINES_LEFT
