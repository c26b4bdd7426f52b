"""The invariants of a simulated cluster that are not checked at commits.

Checks run at each start of a process, every minute, and at the end of the run.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from control_plane.actors import addresses
from control_plane.actors.experiment.state import ExperimentState, listing_sort_key
from control_plane.actors.records import DataRetention, Status
from control_plane.actors.trial.checkpoints import CHECKPOINT_PARTS
from control_plane.actors.trial.state import TrialState
from control_plane.actors.trial.time_limit import remaining_time_ms
from control_plane.rows.experiment_rows import COLLECTION, RETENTION_END
from control_plane.rows.registry import find_row_type
from control_plane.simulation.experiment import SimulationResult, simulate_experiment
from control_plane.simulation.machines import ValidationSchedule
from control_plane.simulation.submission import validation_schedule
from control_plane.state.table import Key, TableError
from simulator.checks.state_checker import InvariantBroken, StateChecker
from simulator.machines.agent import SimulatedAgent
from simulator.machines.checkpoints import CheckpointStore
from simulator.seeded.hangs import HANGS_MAX
from simulator.seeded.searches import DETERMINISTIC_FAMILIES, EPOCH_BATCHES, Search
from simulator.seeded.users import SubmittedExperiment

# Enough slots for all trials of a search at once.
SLOTS_AMPLE = 64


class ErrorLog(logging.Handler):
    """A log handler that collects errors, except errors because of the table's faults.

    Attributes:
        messages: the message and exception of each collected error.
    """

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Collect a record, unless its exception is a TableError."""
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, TableError):
            self.messages.append(f"{record.getMessage()}: {error!r}")


@dataclass
class Invariants:
    """The checks of the invariants. Each check raises InvariantBroken."""

    checker: StateChecker
    checkpoints: CheckpointStore
    errors: ErrorLog = field(default_factory=ErrorLog)
    """The errors that the cluster has logged."""
    node_agents: dict[tuple[str, int], SimulatedAgent] = field(default_factory=dict)
    """The agent that last started each node, by allocation and rank."""

    def check_process_start(self, agent: SimulatedAgent, spec: Mapping[str, Any]) -> None:
        """Check a process that an agent is about to start, and record the agent for the node.

        No other agent may run the same node. Processes of this agent may use the same slots only if
        their trials share slots, and then at most as many as may share. A run with the trial's
        current epoch must start from the newest checkpoint. Raises InvariantBroken.
        """
        allocation, rank = spec["allocation_id"], spec["node_rank"]
        other = self.node_agents.setdefault((allocation, rank), agent)
        process = other.processes.get(allocation)
        if other is not agent and process is not None and not process.has_ended:
            raise InvariantBroken(f"{allocation} runs on {other.name} and {agent.name}")
        self.node_agents[allocation, rank] = agent
        others = [
            process
            for process in agent.processes.values()
            if not process.has_ended and set(process.slots) & set(spec["slots"])
        ]
        experiments = {spec["experiment_id"], *(one.spec["experiment_id"] for one in others)}
        if len(others) >= spec.get("slot_sharers", 1) or len(experiments) > 1:
            raise InvariantBroken(f"{agent.name} runs {allocation} on slots of {others}")
        state = self.checker.actor_state(addresses.trial(spec["trial_id"]))
        newest = state.checkpoint.steps_completed if state.checkpoint else 0
        if state.epoch == spec["epoch"] and spec["steps_completed"] != newest:
            steps = spec["steps_completed"]
            raise InvariantBroken(f"{allocation} begins at {steps}, not at {newest}")

    def count_known_checkpoints(self, due_checkpoints: Mapping[str, str]) -> int:
        """Return the number of these checkpoints that the cluster has recorded.

        Args:
            due_checkpoints: UUIDs of checkpoints by allocation. "" counts as not recorded.
        """
        count = 0
        for allocation, uuid in due_checkpoints.items():
            address = addresses.trial(int(allocation.partition(".")[0]))
            count += bool(uuid) and self.checker.part(address, CHECKPOINT_PARTS + uuid) is not None
        return count

    def check(self, experiments: Iterable[SubmittedExperiment]) -> None:
        """Check that no error was logged, that all submitted experiments exist, and that the newest
        checkpoint of each unfinished trial exists. No expired data is marked before its time.

        The caller repeats this check every minute. Raises InvariantBroken.
        """
        if self.errors.messages:
            raise InvariantBroken(f"an error was logged: {self.errors.messages[0]}")
        for submitted in experiments:
            self._experiment_state(submitted)
        self._check_expired_data(experiments)
        for trial in self.checker.actor_states("trial"):
            if not trial.status.is_final and trial.checkpoint is not None:
                self._check_newest_checkpoint(trial)

    def check_end(self, experiments: Iterable[SubmittedExperiment]) -> None:
        """Check everything that `check` checks, then the absence of leftover rows and exclusions,
        and the results.

        Only searches that no user stopped must have correct results. Raises InvariantBroken.
        """
        self.check(experiments)
        left = [
            key
            for key in self.checker.rows
            if (row_type := find_row_type(*key)) is None or row_type.is_passing
        ]
        if left:
            raise InvariantBroken(f"rows are left over: {left[:5]}")
        for agent in self.checker.actor_states("agent"):
            if agent.exclusions:
                raise InvariantBroken(f"an exclusion of {agent.agent} has no end")
        for submitted in experiments:
            state = self._experiment_state(submitted)
            sort = listing_sort_key(state.experiment_id)
            for waits, partition in (
                (state.expiry.planned, RETENTION_END.partition),
                (state.expiry.pending, COLLECTION.partition),
            ):
                if waits is not None and Key(partition, sort) not in self.checker.rows:
                    raise InvariantBroken(f"{waits} of experiment {state.experiment_id} is lost")
            if submitted.runs_to_end:
                _check_search_result(
                    submitted.search, state, self._trial_states(state.experiment_id)
                )

    def _check_expired_data(self, experiments: Iterable[SubmittedExperiment]) -> None:
        """Check that only trials with a short retention are marked, and no present run.

        The marks count the runs whose logs and metrics were deleted. Raises InvariantBroken.
        """
        short = {
            submitted.experiment_id
            for submitted in experiments
            if submitted.search.message.data_retention == DataRetention(0, 0)
        }
        for trial in self.checker.actor_states("trial"):
            marked = max(trial.expired_data.logs_epoch, trial.expired_data.metrics_epoch)
            if marked and trial.experiment_id not in short:
                raise InvariantBroken(f"data of trial {trial.trial_id} was deleted too early")
            if marked == trial.epoch > 0 and trial.allocation is not None:
                raise InvariantBroken(f"the present run of trial {trial.trial_id} is marked")

    def _experiment_state(self, submitted: SubmittedExperiment) -> ExperimentState:
        """Return an experiment's state. Raises InvariantBroken if the experiment has no state."""
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


def _has_used_up_time(trial: TrialState) -> bool:
    """Return whether a trial was canceled because no time was left of `max_trial_duration`."""
    return trial.status is Status.CANCELED and remaining_time_ms(trial) == 0


def _failed_in_window(trial: TrialState) -> bool:
    """Return whether more than `max_restarts` failures within the restart window ended a trial."""
    too_many = len(trial.failure_times) > trial.settings.max_restarts
    return trial.status is Status.ERROR and too_many


def _check_search_result(search: Search, state: ExperimentState, trials: list[TrialState]) -> None:
    """Check the result of a search that no user stopped.

    The search and its trials must be completed, and no trial may have failed more often than its
    code does. A deterministic search must have the same result as without faults. A search with a
    trial that a log policy ended after a failure, that ended for low use, that has used up its
    time, or that failed too often in its restart window, may have any result. So may a search with
    a trial that completed after its time was used up, if all trials completed. Raises
    InvariantBroken.
    """
    if any(trial.retries_canceled and trial.status is Status.ERROR for trial in trials):
        return
    if any("(low_use)" in trial.message and trial.status is Status.CANCELED for trial in trials):
        return
    if any(_has_used_up_time(trial) or _failed_in_window(trial) for trial in trials):
        return
    statuses = {trial.trial_id: trial.status for trial in trials}
    if state.status is not Status.COMPLETED or set(statuses.values()) != {Status.COMPLETED}:
        raise InvariantBroken(f"{state.name} is {state.status} with {statuses}")
    for trial in trials:
        # A restart after a hang is no failure of the code.
        hangs = HANGS_MAX if trial.settings.restarts_hangs else 0
        if trial.restarts > search.failures_max + hangs:
            raise InvariantBroken(f"{trial} failed more often than its code does")
    # A trial may complete while its cancellation waits. Without faults, the trial is canceled.
    is_out_of_time = any(remaining_time_ms(trial) == 0 for trial in trials)
    if search.family not in DETERMINISTIC_FAMILIES or is_out_of_time:
        return
    expected = simulate_without_faults(search).experiment
    if (state.trials, state.best_metric) != (expected.trials, expected.best_metric):
        text = f"{state.name} found {state.best_metric} with {state.trials} trials"
        raise InvariantBroken(
            f"{text}, without faults {expected.best_metric} with {expected.trials}"
        )


def simulate_without_faults(search: Search) -> SimulationResult:
    """Simulate a search without failures, in which only training takes time.

    Lengths in epochs are converted to batches with the true size of an epoch.
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
