"""The trial that an agent runs, looked up by the allocation that the agent names."""

from dataclasses import dataclass

from control_plane.actors import addresses
from control_plane.actors.agent.actor import AgentState
from control_plane.actors.experiment.state import Definition, ExperimentState
from control_plane.actors.step import CommandRefused
from control_plane.actors.trial.state import TrialState
from control_plane.agents.service import AgentService
from control_plane.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class RunningTrial:
    """The trial of an allocation, and the pool of the agent that runs it."""

    trial: TrialState
    experiment: ExperimentState
    definition: Definition
    pool: str


def read_running_trial(
    engine: Engine, service: AgentService, agent: str, allocation: str
) -> RunningTrial:
    """Read the trial of an allocation.

    Raises CommandRefused: forbidden for an allocation that is not on the agent now.
    """
    trial_id, epoch = map(int, allocation.split("."))
    state = engine.read_state(addresses.agent(agent))
    known = (trial_id, epoch)
    is_here = (
        isinstance(state, AgentState)
        and not state.lost
        and any(
            (desired_allocation.trial_id, desired_allocation.epoch) == known
            for desired_allocation in state.desired
        )
    )
    if not isinstance(state, AgentState) or not is_here:
        raise CommandRefused("forbidden", f"allocation {allocation} is not one of agent {agent}")
    trial = service.read_trial(trial_id)
    found = None if trial is None else service.read_experiment(trial.experiment_id)
    if trial is None or found is None or trial.epoch != epoch:
        raise CommandRefused("forbidden", f"allocation {allocation} is over")
    return RunningTrial(trial, *found, state.pool)
