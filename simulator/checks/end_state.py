"""The final state of a cluster, for comparing a disturbed run with an undisturbed run."""

from typing import Any

from control_plane.actors import addresses
from control_plane.rows.actor_rows import OUTBOX
from control_plane.rows.experiment_rows import SUGGESTION
from simulator.checks.state_checker import StateChecker


def end_state(checker: StateChecker, *, interchangeable: bool = False) -> dict[str, Any]:
    """Return the state when all is over, but for clocks and ids of rows.

    `interchangeable`: how far which trial came depends on who was first; that all ended does not.
    """
    experiments = {
        state.experiment_id: {
            "status": state.status.value,
            "trials": (state.trials, state.trials_open),
            "ended": (state.trials_completed, state.trials_errored),
            "life": (state.run_generation, state.name, state.archived),
            "settings": checker.part(addresses.experiment(state.experiment_id), "settings"),
            "best": (state.best_metric, None if interchangeable else state.best_trial),
            "progress": 0.0 if interchangeable else round(state.progress or 0.0, 6),
        }
        for state in checker.actor_states("experiment")
    }
    trials = sorted(
        (
            0 if interchangeable else state.trial_id,
            state.status.value,
            state.restarts,
            -1.0 if state.best_metric is None or interchangeable else state.best_metric,
            0 if interchangeable else state.reached,
        )
        for state in checker.actor_states("trial")
    )
    pools = {
        state.name: (state.agents, state.slots, state.free, state.queued, state.running)
        for state in checker.actor_states("pool")
    }
    held = [s.trial_id for s in checker.actor_states("trial") if s.allocation is not None]
    desired = [(s.agent, s.desired) for s in checker.actor_states("agent") if s.desired]
    outbox = [key for key in checker.rows if key.sort.startswith(OUTBOX.sort)]
    outbox += [key for key in checker.rows if key.partition == SUGGESTION.partition]
    return {
        "experiments": experiments,
        "trials": trials,
        "pools": pools,
        "left over": [checker.pending_mail(), held, desired, outbox],
    }
