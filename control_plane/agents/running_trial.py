"""Look-up of the trial that an agent runs, by the allocation that the agent names."""

from dataclasses import dataclass

from control_plane.actors import addresses
from control_plane.actors.agent.actor import AgentState
from control_plane.actors.experiment.state import Definition, ExperimentState
from control_plane.actors.step import CommandRefused
from control_plane.actors.trial.state import TrialState
from control_plane.engine.engine import Engine
from control_plane.engine.experiment_reader import ExperimentReader


@dataclass(frozen=True, slots=True)
class RunningTrial:
    """The trial of an allocation that runs on an agent."""

    trial: TrialState
    experiment: ExperimentState
    """The trial's experiment."""
    definition: Definition
    """The definition of the trial's experiment."""
    pool: str
    """The pool of the agent that runs the allocation."""


def read_running_trial(
    engine: Engine, experiments: ExperimentReader, agent: str, allocation: str
) -> RunningTrial:
    """Read the trial of an allocation that `agent` runs, with the experiment.

    Args:
        engine: the engine of the cluster.
        experiments: the reader of experiments.
        agent: the agent's id.
        allocation: the allocation's name, `TRIAL.EPOCH`.

    Raises:
        CommandRefused: "forbidden" unless the allocation is assigned to the agent, the agent is not
            lost, and the allocation is the trial's current one. Also "forbidden" if the trial or
            the experiment no longer exists.
        ValueError: `allocation` is not of this form.
        TableError: the state table failed.
    """
    trial_id, epoch = map(int, allocation.split("."))
    state = engine.read_state(addresses.agent(agent))
    is_here = (
        isinstance(state, AgentState)
        and not state.lost
        and any(
            (desired_allocation.trial_id, desired_allocation.epoch) == (trial_id, epoch)
            for desired_allocation in state.desired
        )
    )
    if not isinstance(state, AgentState) or not is_here:
        raise CommandRefused("forbidden", f"allocation {allocation} is not one of agent {agent}")
    trial = experiments.read_trial(trial_id)
    defined = None if trial is None else experiments.read_experiment(trial.experiment_id)
    if trial is None or defined is None or trial.epoch != epoch:
        raise CommandRefused("forbidden", f"allocation {allocation} is over")
    return RunningTrial(trial, *defined, state.pool)
