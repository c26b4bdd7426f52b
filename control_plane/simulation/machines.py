"""Simulated machines: their trials follow learning curves instead of training.

Like a real agent, they learn from the agent's state which allocations are theirs and from a trial's
state what it is to do. A trial trains to its target, validates on the way where the configuration
says so, and at the target checkpoints before it reports the length. Nothing fails, and starting,
validating and checkpointing take no time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from control_plane.actors import addresses
from control_plane.actors.agent.actor import AgentState
from control_plane.actors.messages.agent import AgentEnrolled
from control_plane.actors.messages.trial import (
    AllocationExited,
    CheckpointReported,
    ContainerStateReported,
    LengthReached,
    ValidationReported,
)
from control_plane.actors.records import CheckpointRef
from control_plane.actors.trial.state import AllocationState, DesiredState, TrialState
from control_plane.simulation.actor_system import ActorSystem
from control_plane.simulation.learning_curves import LearningCurve, LearningCurves
from control_plane.simulation.virtual_clock import VirtualClock

# As most machines with accelerators have.
SLOTS_PER_MACHINE = 8

ValidationPeriod = Callable[[TrialState], int]
"""Batches after which a trial validates, whatever its target; 0: only there."""

TimeMetric = Callable[[TrialState, int], float]
"""A trial's time metric after so many batches."""


@dataclass(frozen=True, slots=True)
class ValidationSchedule:
    """The validations of trials. Where the search measures training by a time metric, `time_metric`
    gives it; such trials train until they are stopped, and need a period above 0.
    """

    validation_period: ValidationPeriod = lambda trial: 0
    time_metric: TimeMetric | None = None


def machine_slots(slots: int, slots_per_trial: int) -> list[int]:
    """The slots of each machine of a cluster with `slots`: whole trials fit into all but the last,
    which has the rest.
    """
    each = max(1, slots_per_trial)
    each *= max(1, SLOTS_PER_MACHINE // each)
    full, rest = divmod(slots, each)
    return [each] * full + [rest] * (rest > 0)


@dataclass(slots=True)
class SimulatedRun:
    """An allocation on its machine, at batch `steps` since `since_ms`. `stop`: the batch that it
    trains to, None while it waits for directives.
    """

    trial_id: int
    epoch: int
    curve: LearningCurve
    slots: int
    placed_ms: int
    steps: int
    since_ms: float
    stop: int | None = None


@dataclass(slots=True)
class UsageTotals:
    """The usage of all trials together: batches, those of them beyond the recorded curves, the
    configuration's units, and slot-time.
    """

    batches: int = 0
    extrapolated_batches: int = 0
    units: float = 0.0
    slot_ms: int = 0


class Machines:
    """The machines of a simulated pool."""

    def __init__(
        self,
        clock: VirtualClock,
        mail: ActorSystem,
        curves: LearningCurves,
        schedule: ValidationSchedule,
    ) -> None:
        self.usage = UsageTotals()
        self._clock = clock
        self._actors = mail
        self._curves = curves
        self._schedule = schedule
        self._runs: dict[int, SimulatedRun] = {}
        self._epochs: dict[int, int] = {}
        # Batches in the weights that a copy of a trial began with.
        self._inherited: dict[int, int] = {}

    def enrol_machines(self, pool: str, slots: list[int]) -> None:
        """Enrol machines in the pool, each with so many slots."""
        digits = len(str(len(slots)))
        for number, count in enumerate(slots, 1):
            name = f"machine-{number:0{digits}}"
            held = tuple((slot, "virtual", f"{name}.{slot}", "virtual") for slot in range(count))
            self._actors.post_messages(addresses.agent(name), AgentEnrolled(name, pool, held))
        self._actors.deliver_messages()

    def observe_agent(self, agent: AgentState) -> None:
        """Start the allocations on the agent that were not started."""
        for desired in agent.desired:
            if self._epochs.get(desired.trial_id, 0) < desired.epoch:
                self._epochs[desired.trial_id] = desired.epoch
                self._start(desired.trial_id, desired.epoch, len(desired.slots))

    def observe_trial(self, trial: TrialState) -> None:
        """Follow a change of the trial's directives."""
        run = self._runs.get(trial.trial_id)
        if run is not None and run.epoch == trial.epoch:
            self._follow_directives(run, trial)

    def _start(self, trial_id: int, epoch: int, slots: int) -> None:
        trial: TrialState = self._actors.read_state(addresses.trial(trial_id))
        if trial.epoch != epoch or trial.status.is_final:
            return
        now_ms = self._clock.now_ms
        steps = trial.checkpoint.steps_completed if trial.checkpoint else 0
        curve = self._curves.curve_for(trial)
        run = self._runs[trial_id] = SimulatedRun(
            trial_id, epoch, curve, slots, now_ms, steps, now_ms
        )
        running = ContainerStateReported(epoch, AllocationState.RUNNING)
        self._actors.post_messages(addresses.trial(trial_id), running)
        self._follow_directives(run, trial)

    def _follow_directives(self, run: SimulatedRun, trial: TrialState) -> None:
        """Do what a trial's process does when it reads its directives."""
        desired = trial.allocation.wish if trial.allocation else DesiredState.KILL
        if desired is DesiredState.KILL:
            self._exit(run, trial, "killed")
        elif trial.length is not None and trial.length > trial.reached:
            if desired is DesiredState.PREEMPT:
                self._exit(run, trial, "preempted")
            elif run.stop is None:
                self._train_on(run, trial)
        elif trial.closed:
            self._exit(run, trial, "completed")
        elif desired is DesiredState.PREEMPT:
            self._exit(run, trial, "preempted")
        elif trial.length is not None and trial.length <= trial.answered:
            self._exit(run, trial, "idle")

    def _train_on(self, run: SimulatedRun, trial: TrialState) -> None:
        assert trial.length is not None
        period = self._schedule.validation_period(trial)
        due = run.steps + period - run.steps % period if period else trial.length
        run.stop = max(run.steps, min(due, trial.length))
        if self._clock.now_ms - run.since_ms >= 1:
            # It has waited; otherwise the fractions of a ms add up.
            run.since_ms = self._clock.now_ms
        due_ms = round(run.since_ms + (run.stop - run.steps) * run.curve.batch_ms)
        self._clock.call_at(due_ms, partial(self._validate_at_stop, run, run.stop))

    def _validate_at_stop(self, run: SimulatedRun, stop: int) -> None:
        """Validate where training stopped; a run that was stopped before stays where it is."""
        if self._runs.get(run.trial_id) is not run or run.stop != stop:
            return
        address = addresses.trial(run.trial_id)
        trial: TrialState = self._actors.read_state(address)
        self._account_batches(run, trial, stop)
        run.stop = None
        metric = run.curve.metric(self._inherited_batches(trial) + stop)
        time_of = self._schedule.time_metric
        time = None if time_of is None else time_of(trial, stop)
        self._actors.post_messages(address, ValidationReported(run.epoch, stop, metric, time))
        if stop == trial.length:
            self._actors.post_messages(address, _checkpoint(run, trial))
            self._actors.post_messages(address, LengthReached(run.epoch, stop, metric))
        self._actors.deliver_messages()

    def _inherited_batches(self, trial: TrialState) -> int:
        """The batches in the weights that the trial began with."""
        begun = trial.inherited
        if begun is None:
            return 0
        if trial.trial_id not in self._inherited:
            parent: TrialState = self._actors.read_state(addresses.trial(begun.trial_id))
            batches = self._inherited_batches(parent) + begun.steps_completed
            self._inherited[trial.trial_id] = batches
        return self._inherited[trial.trial_id]

    def _exit(self, run: SimulatedRun, trial: TrialState, reason: str) -> None:
        del self._runs[run.trial_id]
        address = addresses.trial(run.trial_id)
        if run.stop is not None:
            trained = int((self._clock.now_ms - run.since_ms) / run.curve.batch_ms)
            self._account_batches(run, trial, min(run.stop, run.steps + trained))
            if reason == "preempted":
                self._actors.post_messages(address, _checkpoint(run, trial))
        self.usage.slot_ms += (self._clock.now_ms - run.placed_ms) * run.slots
        self._actors.post_messages(address, AllocationExited(run.epoch, reason))

    def _account_batches(self, run: SimulatedRun, trial: TrialState, steps: int) -> None:
        """Account the batches up to `steps`."""
        known = run.curve.known_batches
        account = self.usage
        account.batches += steps - run.steps
        account.units += trial.settings.lengths.units(steps - run.steps, trial.hparams)
        if known is not None:
            known -= self._inherited_batches(trial)
            account.extrapolated_batches += max(0, steps - max(known, run.steps))
        run.since_ms += (steps - run.steps) * run.curve.batch_ms
        run.steps = steps


def _checkpoint(run: SimulatedRun, trial: TrialState) -> CheckpointReported:
    uuid = f"{run.trial_id}-{run.epoch}-{run.steps}"
    path = f"{trial.experiment_id}/{run.trial_id}/{run.epoch}/{uuid}"
    return CheckpointReported(
        run.epoch, CheckpointRef(uuid, run.trial_id, run.steps, path, ""), size_bytes=0, files=0
    )
