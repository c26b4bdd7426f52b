"""The invariants of a simulated cluster besides those of each commit: on every machine, each
minute, and when all is over.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from control_plane.actors import addresses
from control_plane.actors.experiment.state import ExperimentState
from control_plane.actors.records import Status
from control_plane.actors.trial.checkpoints import CHECKPOINT_PARTS
from control_plane.actors.trial.state import TrialState
from control_plane.simulation.experiment import SimulationResult, simulate_experiment
from control_plane.simulation.machines import ValidationSchedule
from control_plane.simulation.submission import validation_schedule
from control_plane.state.table import TableError
from lambdas.simulation.agent import SimulatedAgent
from lambdas.simulation.checkpoints import CheckpointStore
from lambdas.simulation.searches import DETERMINISTIC_FAMILIES, EPOCH_BATCHES, Search
from lambdas.simulation.state_checker import InvariantBroken, StateChecker
from lambdas.simulation.users import SubmittedExperiment

DEAD_LETTERS = "D#"
# Slots enough for every trial of a search at once.
SLOTS_AMPLE = 64
# Partitions that are empty in the end.
PASSING_PARTITIONS = ("instances#", "intents#", "jobs#", "suggestions")


class ErrorLog(logging.Handler):
    """Whatever the product logs as an error, unless a fault of the table explains it."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Note a record, as described in logging.Handler."""
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, TableError):
            self.messages.append(f"{record.getMessage()}: {error!r}")


@dataclass
class Invariants:
    """Checks of the invariants; each raises InvariantBroken. `node_agents`: the agent that each
    node, by its allocation and rank, was started on last.
    """

    checker: StateChecker
    checkpoints: CheckpointStore
    errors: ErrorLog = field(default_factory=ErrorLog)
    node_agents: dict[tuple[str, int], SimulatedAgent] = field(default_factory=dict)

    def check_process_start(self, agent: SimulatedAgent, spec: Mapping[str, Any]) -> None:
        """Check that a process starts where nobody else runs that node, on slots that nobody else
        uses, and from the newest step.
        """
        allocation, rank = spec["allocation_id"], spec["node_rank"]
        other = self.node_agents.setdefault((allocation, rank), agent)
        process = other.processes.get(allocation)
        if other is not agent and process is not None and not process.has_ended:
            raise InvariantBroken(f"{allocation} runs on {other.name} and {agent.name}")
        self.node_agents[allocation, rank] = agent
        for process in agent.processes.values():
            if not process.has_ended and set(process.slots) & set(spec["slots"]):
                raise InvariantBroken(f"{agent.name} runs {allocation} on slots of {process}")
        state = self.checker.actor_state(addresses.trial(spec["trial_id"]))
        newest = state.checkpoint.steps_completed if state.checkpoint else 0
        if state.epoch == spec["epoch"] and spec["steps_completed"] != newest:
            steps = spec["steps_completed"]
            raise InvariantBroken(f"{allocation} begins at {steps}, not at {newest}")

    def count_known_checkpoints(self, due_checkpoints: Mapping[str, str]) -> int:
        """Return how many of these allocations' checkpoints the cluster has on record."""
        count = 0
        for allocation, uuid in due_checkpoints.items():
            address = addresses.trial(int(allocation.partition(".")[0]))
            count += bool(uuid) and self.checker.part(address, CHECKPOINT_PARTS + uuid) is not None
        return count

    def check(self, experiments: Iterable[SubmittedExperiment]) -> None:
        """Check, each minute, that accepted experiments and the latest checkpoints exist."""
        if self.errors.messages:
            raise InvariantBroken(f"an error was logged: {self.errors.messages[0]}")
        for submitted in experiments:
            self._experiment_state(submitted)
        for trial in self.checker.actor_states("trial"):
            if not trial.status.is_final and trial.checkpoint is not None:
                self._check_newest_checkpoint(trial)

    def check_end(self, experiments: Iterable[SubmittedExperiment]) -> None:
        """Check, when all is over, that nothing is left, and searches have the results that they
        would have without faults.
        """
        self.check(experiments)
        left = [k for k in self.checker.rows if k.partition.startswith(PASSING_PARTITIONS)]
        left += [k for k in self.checker.rows if k.sort.startswith(DEAD_LETTERS)]
        if left:
            raise InvariantBroken(f"rows are left over: {left[:5]}")
        for submitted in experiments:
            state = self._experiment_state(submitted)
            if submitted.runs_to_end:
                _check_search_result(
                    submitted.search, state, self._trial_states(state.experiment_id)
                )

    def _experiment_state(self, submitted: SubmittedExperiment) -> ExperimentState:
        state = self.checker.actor_state(addresses.experiment(submitted.experiment_id))
        if not isinstance(state, ExperimentState):
            raise InvariantBroken(f"experiment {submitted.experiment_id} has vanished")
        return state

    def _trial_states(self, experiment_id: int) -> list[TrialState]:
        states = self.checker.actor_states("trial")
        return [state for state in states if state.experiment_id == experiment_id]

    def _check_newest_checkpoint(self, trial: TrialState) -> None:
        assert trial.checkpoint is not None
        if self.checkpoints.find_checkpoint(trial.checkpoint.uuid) is None:
            raise InvariantBroken(f"the newest checkpoint of {trial} is gone")


def _check_search_result(search: Search, state: ExperimentState, trials: list[TrialState]) -> None:
    """Check that a search that nobody stopped has completed despite the faults and, if its method
    is deterministic, has the same result as without faults.
    """
    statuses = {trial.trial_id: trial.status for trial in trials}
    if state.status is not Status.COMPLETED or set(statuses.values()) != {Status.COMPLETED}:
        raise InvariantBroken(f"{state.name} is {state.status} with {statuses}")
    for trial in trials:
        if trial.restarts > search.failures_max:
            raise InvariantBroken(f"{trial} failed more often than its code does")
    if search.family not in DETERMINISTIC_FAMILIES:
        return
    expected = simulate_without_faults(search).experiment
    if (state.trials, state.best_metric) != (expected.trials, expected.best_metric):
        text = f"{state.name} found {state.best_metric} with {state.trials} trials"
        raise InvariantBroken(
            f"{text}, without faults {expected.best_metric} with {expected.trials}"
        )


def simulate_without_faults(search: Search) -> SimulationResult:
    """Simulate the same search where nothing fails and nothing but training takes time; in batches,
    if only its trials know how many an epoch has.
    """
    settings = search.message.settings
    if settings.lengths.counts_epochs:
        settings = replace(settings, lengths=search.learning_curves.lengths)
    schedule = validation_schedule(search.config)
    epochs = search.config.trial_epochs("min_validation_period")
    return simulate_experiment(
        replace(search.message, settings=settings),
        SLOTS_AMPLE,
        search.learning_curves,
        validation_schedule=(
            ValidationSchedule(lambda trial: epochs * EPOCH_BATCHES) if epochs else schedule
        ),
    )
