"""Reads of all states that an answer to an agent needs: the agent, trials and experiments.

A function waits for every read of the state table, and one read of many states takes as long as a
read of one state. So all states are read at once.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from control_plane.actors import addresses
from control_plane.actors.experiment.state import ExperimentState
from control_plane.actors.records import Status
from control_plane.actors.trial.state import TrialState
from control_plane.engine.engine import Engine

TRIALS_KNOWN_MAX = 10_000
"""The number of trials above which a reader clears its memory of experiment ids."""


@dataclass(frozen=True, slots=True)
class ActorStates:
    """The states of an agent, of trials and of the trials' experiments.

    The states may be from slightly different moments.
    """

    agent: object = None
    """The agent's state. None if not requested or if the agent does not exist."""
    trials: dict[int, TrialState | None] = field(default_factory=dict)
    """Trial states by trial id, None for a trial that does not exist."""
    experiments: dict[int, ExperimentState] = field(default_factory=dict)
    """Experiment states by id, without deleted experiments."""

    def __or__(self, more: "ActorStates") -> "ActorStates":
        """Return a union that adds the trials and experiments of `more`.

        A state in `more` replaces the state with the same id. The agent's state is kept.
        """
        return ActorStates(
            self.agent, self.trials | more.trials, self.experiments | more.experiments
        )


class ActorStateReader:
    """A reader of states that remembers the experiment id of each trial.

    The experiment of a trial never changes. Threads may share a reader.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._experiment_ids: dict[int, int] = {}

    def read_actor_states(self, trial_ids: Sequence[int], agent: str | None = None) -> ActorStates:
        """Read the states of trials, of the trials' experiments and of an agent together.

        If the reader does not know a trial's experiment yet, a second request reads the experiment.
        Raises TableError.

        Args:
            trial_ids: the trials. An unknown trial has the state None.
            agent: the agent's id. None reads no agent.
        """
        known_ids = self._experiment_ids
        numbers = sorted({known_ids[trial_id] for trial_id in trial_ids if trial_id in known_ids})
        names = [] if agent is None else [addresses.agent(agent)]
        states = self._engine.read_states(
            [*names, *map(addresses.trial, trial_ids), *map(addresses.experiment, numbers)]
        )
        experiments = states[len(names) + len(trial_ids) :]
        trials = dict(zip(trial_ids, states[len(names) :], strict=False))
        self._remember_experiments(trials)
        new = {trial.experiment_id for trial in trials.values() if trial is not None} - set(numbers)
        if new:
            experiments += self._engine.read_states([*map(addresses.experiment, sorted(new))])
        return ActorStates(states[0] if names else None, trials, _experiments_by_id(experiments))

    def read_trials(self, trial_ids: Sequence[int]) -> list[TrialState | None]:
        """Read the states of trials, in the order of the ids. The entry of an unknown trial is
        None.

        Raises TableError.
        """
        return self._engine.read_states([*map(addresses.trial, trial_ids)])

    def find_experiment_ids(self, trial_ids: Collection[int]) -> dict[int, int]:
        """Return the experiment id of each trial that exists, by trial id.

        Unknown trials are left out. A trial is read only if the reader does not know its experiment
        yet. Raises TableError.
        """
        known_ids = self._experiment_ids
        experiment_ids = {
            trial_id: experiment_id
            for trial_id in trial_ids
            if (experiment_id := known_ids.get(trial_id)) is not None
        }
        if unknown := sorted(set(trial_ids) - experiment_ids.keys()):
            trials = dict(zip(unknown, self.read_trials(unknown), strict=True))
            self._remember_experiments(trials)
            experiment_ids |= {
                number: trial.experiment_id for number, trial in trials.items() if trial is not None
            }
        return experiment_ids

    def _remember_experiments(self, trials: dict[int, TrialState | None]) -> None:
        """Remember the experiment id of each existing trial. Clear the memory first if it would
        overflow.
        """
        if len(self._experiment_ids) + len(trials) > TRIALS_KNOWN_MAX:
            self._experiment_ids = {}
        self._experiment_ids |= {
            number: trial.experiment_id for number, trial in trials.items() if trial is not None
        }


def _experiments_by_id(states: Sequence[Any]) -> dict[int, ExperimentState]:
    """Return the states of experiments by id. Deleted and missing experiments are left out."""
    return {
        state.experiment_id: state
        for state in states
        if isinstance(state, ExperimentState) and state.status is not Status.DELETED
    }
