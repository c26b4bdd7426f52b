"""What must hold of a simulated cluster beside what each commit is checked for: on every machine,
each minute, and when all is over.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from control_plane.actors import addresses
from control_plane.actors.experiment_state import ExperimentState
from control_plane.actors.records import Status
from control_plane.actors.trial_checkpoints import CHECKPOINT_PARTS
from control_plane.actors.trial_state import TrialState
from control_plane.simulation.experiment import Outcome, simulate
from control_plane.simulation.submission import pace_of
from control_plane.state.table import TableError
from lambdas.simulation.agent import Agent
from lambdas.simulation.checkpoints import Checkpoints
from lambdas.simulation.people import Submitted
from lambdas.simulation.searches import ORDERLY, Search
from lambdas.simulation.watch import InvariantBroken, Shadow

DEAD_LETTERS = "D#"
# Slots enough for every trial of a search at once.
SLOTS_AMPLE = 64
LEFT_OVER = ("instances#", "intents#", "jobs#", "suggestions")


class Errors(logging.Handler):
    """Whatever the product logs as an error that no fault of the table explains."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """See Handler."""
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, TableError):
            self.told.append(f"{record.getMessage()}: {error!r}")


@dataclass
class Truths:
    """Checks; each raises InvariantBroken."""

    shadow: Shadow
    checkpoints: Checkpoints
    errors: Errors = field(default_factory=Errors)
    began: dict[tuple[str, int], Agent] = field(default_factory=dict)

    def begins(self, agent: Agent, spec: Mapping[str, Any]) -> None:
        """A process begins where nobody else runs that node, on slots that nobody else uses, and
        from the newest step.
        """
        allocation, rank = spec["allocation_id"], spec["node_rank"]
        other = self.began.setdefault((allocation, rank), agent)
        run = other.runs.get(allocation)
        if other is not agent and run is not None and not run.ended:
            raise InvariantBroken(f"{allocation} runs on {other.name} and {agent.name}")
        self.began[allocation, rank] = agent
        for run in agent.runs.values():
            if not run.ended and set(run.slots) & set(spec["slots"]):
                raise InvariantBroken(f"{agent.name} runs {allocation} on slots of {run}")
        state = self.shadow.state(addresses.trial(spec["trial_id"]))
        newest = state.checkpoint.steps_completed if state.checkpoint else 0
        if state.epoch == spec["epoch"] and spec["steps_completed"] != newest:
            steps = spec["steps_completed"]
            raise InvariantBroken(f"{allocation} begins at {steps}, not at {newest}")

    def kept(self, promised: Mapping[str, str]) -> int:
        """How many of these allocations' checkpoints the cluster has on record."""
        found = 0
        for allocation, uuid in promised.items():
            address = addresses.trial(int(allocation.partition(".")[0]))
            found += bool(uuid) and self.shadow.part(address, CHECKPOINT_PARTS + uuid) is not None
        return found

    def hold(self, accepted: Iterable[Submitted]) -> None:
        """Each minute: what was accepted is there, and so is what trials would go on from."""
        if self.errors.told:
            raise InvariantBroken(f"an error was logged: {self.errors.told[0]}")
        for submitted in accepted:
            self._experiment(submitted)
        for trial in self.shadow.states("trial"):
            if not trial.status.final and trial.checkpoint is not None:
                self._there(trial)

    def at_the_end(self, accepted: Iterable[Submitted]) -> None:
        """When all is over: nothing is left, and searches came out as they would have anyway."""
        self.hold(accepted)
        left = [k for k in self.shadow.rows if k.partition.startswith(LEFT_OVER)]
        left += [k for k in self.shadow.rows if k.sort.startswith(DEAD_LETTERS)]
        if left:
            raise InvariantBroken(f"rows are left over: {left[:5]}")
        for submitted in accepted:
            state = self._experiment(submitted)
            if submitted.left_alone:
                _came_out(submitted.search, state, self._trials(state.experiment_id))

    def _experiment(self, submitted: Submitted) -> ExperimentState:
        state = self.shadow.state(addresses.experiment(submitted.experiment_id))
        if not isinstance(state, ExperimentState):
            raise InvariantBroken(f"experiment {submitted.experiment_id} has vanished")
        return state

    def _trials(self, experiment_id: int) -> list[TrialState]:
        states = self.shadow.states("trial")
        return [state for state in states if state.experiment_id == experiment_id]

    def _there(self, trial: TrialState) -> None:
        assert trial.checkpoint is not None
        if self.checkpoints.find(trial.checkpoint.uuid) is None:
            raise InvariantBroken(f"the newest checkpoint of {trial} is gone")


def _came_out(search: Search, state: ExperimentState, trials: list[TrialState]) -> None:
    """A search that nobody stopped has completed, whatever struck; one whose course depends on
    nothing else has found what it finds without faults.
    """
    found = {trial.trial_id: trial.status for trial in trials}
    if state.status is not Status.COMPLETED or set(found.values()) != {Status.COMPLETED}:
        raise InvariantBroken(f"{state.name} is {state.status} with {found}")
    for trial in trials:
        if trial.restarts > search.failures_max:
            raise InvariantBroken(f"{trial} failed more often than its code does")
    if search.family not in ORDERLY:
        return
    expected = undisturbed(search).experiment
    if (state.trials, state.best_metric) != (expected.trials, expected.best_metric):
        text = f"{state.name} found {state.best_metric} with {state.trials} trials"
        raise InvariantBroken(
            f"{text}, without faults {expected.best_metric} with {expected.trials}"
        )


def undisturbed(search: Search) -> Outcome:
    """The same search where nothing fails and nothing takes any time but training."""
    return simulate(search.message, SLOTS_AMPLE, search.courses, pace=pace_of(search.config))
