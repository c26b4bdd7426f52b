"""One read of all states that the answer to an agent needs: the agent's, its trials' and their
experiments'.

A function far from its table waits for each read, and reading all states at once takes as long as
reading one.
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


@dataclass(frozen=True, slots=True)
class ActorStates:
    """The states of an agent, of trials and of their experiments, each as of its own moment.

    `agent` is None if it was not requested or does not exist, and so is a trial that does not
    exist. Experiments that do not exist or are deleted are left out.
    """

    agent: object = None
    trials: dict[int, TrialState | None] = field(default_factory=dict)
    experiments: dict[int, ExperimentState] = field(default_factory=dict)

    def __or__(self, more: "ActorStates") -> "ActorStates":
        """Return these states and those of `more` trials and experiments."""
        return ActorStates(
            self.agent, self.trials | more.trials, self.experiments | more.experiments
        )


class ActorStateReader:
    """Reads states with an engine, and remembers which experiment each trial belongs to, since that
    never changes. Safe to share between threads.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._experiment_ids: dict[int, int] = {}

    def read_actor_states(self, trial_ids: Sequence[int], agent: str | None = None) -> ActorStates:
        """Read the states of trials, of their experiments and of an agent at once.

        Trials that this reader has not seen yet cost a second read, for their experiments.
        """
        known = self._experiment_ids
        numbers = sorted({known[trial_id] for trial_id in trial_ids if trial_id in known})
        names = [] if agent is None else [addresses.agent(agent)]
        states = self._engine.read_states(
            [*names, *map(addresses.trial, trial_ids), *map(addresses.experiment, numbers)]
        )
        owners = states[len(names) + len(trial_ids) :]
        trials = dict(zip(trial_ids, states[len(names) :], strict=False))
        self._remember_experiments(trials)
        new = {trial.experiment_id for trial in trials.values() if trial is not None} - set(numbers)
        if new:
            owners += self._engine.read_states([*map(addresses.experiment, sorted(new))])
        return ActorStates(states[0] if names else None, trials, _by_number(owners))

    def read_trials(self, trial_ids: Sequence[int]) -> list[TrialState | None]:
        """Read the states of trials, in their order; None for one that does not exist."""
        return self._engine.read_states([*map(addresses.trial, trial_ids)])

    def find_experiment_ids(self, trial_ids: Collection[int]) -> dict[int, int]:
        """Return the experiment ids of those trials that exist; each trial is read once."""
        known = self._experiment_ids
        owners = {
            trial_id: owner for trial_id in trial_ids if (owner := known.get(trial_id)) is not None
        }
        if unknown := sorted(set(trial_ids) - owners.keys()):
            trials = dict(zip(unknown, self.read_trials(unknown), strict=True))
            self._remember_experiments(trials)
            owners |= {
                number: trial.experiment_id for number, trial in trials.items() if trial is not None
            }
        return owners

    def _remember_experiments(self, trials: dict[int, TrialState | None]) -> None:
        if len(self._experiment_ids) + len(trials) > TRIALS_KNOWN_MAX:
            self._experiment_ids = {}
        self._experiment_ids |= {
            number: trial.experiment_id for number, trial in trials.items() if trial is not None
        }


def _by_number(states: Sequence[Any]) -> dict[int, ExperimentState]:
    return {
        state.experiment_id: state
        for state in states
        if isinstance(state, ExperimentState) and state.status is not Status.DELETED
    }
