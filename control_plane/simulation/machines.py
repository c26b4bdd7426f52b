"""Simulated machines, on which trials follow learning curves instead of training.

Like a real agent, a machine reads the assigned allocations from the agent's state, and the
directives from the trial's state. A trial trains to the requested length and validates there, and
also before if the configuration has a validation period. At the length, the trial saves a
checkpoint and then reports the length. Failures do not occur. Starting, validating and saving take
no time.
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
from control_plane.simulation.trial_course import NextAction, next_action, next_stop
from control_plane.simulation.virtual_clock import VirtualClock

# The number of accelerators in most machines.
SLOTS_PER_MACHINE = 8

ValidationPeriod = Callable[[TrialState], int]
"""Returns the number of batches between a trial's validations. 0: the trial only validates at the
requested length.
"""

TimeMetric = Callable[[TrialState, int], float]
"""Returns a trial's time metric after a number of batches."""


@dataclass(frozen=True, slots=True)
class ValidationSchedule:
    """The schedule of all trials' validations."""

    validation_period: ValidationPeriod = lambda trial: 0
    time_metric: TimeMetric | None = None
    """The search's time metric, or None. With a time metric, trials train until the search stops
    the trials, and the validation period must be above 0.
    """


def machine_slots(slots: int, slots_per_trial: int) -> list[int]:
    """Return the number of slots of each machine of a cluster with `slots` slots.

    All machines except the last have the same number: a multiple of `slots_per_trial`, at most
    SLOTS_PER_MACHINE unless a single trial needs more. The last machine has the remaining slots.
    """
    size = max(1, slots_per_trial)
    size *= max(1, SLOTS_PER_MACHINE // size)
    full, rest = divmod(slots, size)
    return [size] * full + [rest] * (rest > 0)


@dataclass(slots=True)
class SimulatedRun:
    """A trial's allocation on a machine."""

    trial_id: int
    epoch: int
    curve: LearningCurve
    slots: int
    placed_ms: int
    """The virtual time at which the allocation started."""
    steps: int
    """The number of trained batches at `since_ms`, counted from the trial's start."""
    since_ms: float
    """The virtual time at which `steps` was reached or training continued."""
    stop: int | None = None
    """The batch of the next validation. None: the run does not train and waits for directives."""


@dataclass(slots=True)
class UsageTotals:
    """The usage of all trials together."""

    batches: int = 0
    """The number of trained batches."""
    extrapolated_batches: int = 0
    """The number of trained batches beyond the end of recorded curves."""
    units: float = 0.0
    """The training in the configuration's unit."""
    slot_ms: int = 0
    """The sum over all allocations: slots times virtual ms."""


class Machines:
    """The machines of a simulated pool. `usage` is the usage so far."""

    def __init__(
        self,
        clock: VirtualClock,
        actors: ActorSystem,
        curves: LearningCurves,
        schedule: ValidationSchedule,
    ) -> None:
        self.usage = UsageTotals()
        self._clock = clock
        self._actors = actors
        self._curves = curves
        self._schedule = schedule
        # The current run of each trial.
        self._runs: dict[int, SimulatedRun] = {}
        # The epoch of the latest started allocation of each trial.
        self._epochs: dict[int, int] = {}
        # The batches of training in the first weights of each copied trial.
        self._inherited: dict[int, int] = {}

    def enrol_machines(self, pool: str, slots: list[int]) -> None:
        """Add a machine with N slots to the pool for each number N in `slots`.

        Post an AgentEnrolled to each machine's agent, and deliver all messages.
        """
        digits = len(str(len(slots)))
        for number, count in enumerate(slots, 1):
            name = f"machine-{number:0{digits}}"
            devices = tuple((slot, "virtual", f"{name}.{slot}", "virtual") for slot in range(count))
            self._actors.post_messages(addresses.agent(name), AgentEnrolled(name, pool, devices))
        self._actors.deliver_messages()

    def observe_agent(self, agent: AgentState) -> None:
        """Start a run for each new allocation of the agent, after a change of the agent's state.

        Post the state RUNNING to the trial and carry out the trial's directives. An allocation is
        new if no allocation of the trial with this or a later epoch was started. Nothing is started
        for an ended trial or an outdated epoch. Runs end only through `observe_trial`.
        """
        for desired in agent.desired:
            if self._epochs.get(desired.trial_id, 0) < desired.epoch:
                self._epochs[desired.trial_id] = desired.epoch
                self._start(desired.trial_id, desired.epoch, len(desired.slots))

    def observe_trial(self, trial: TrialState) -> None:
        """Let the trial's run train, wait or exit by the directives, after a change of the trial.

        Training schedules the next validation with the clock. An exit is posted to the trial. Do
        nothing if the trial has no run, or a run of another epoch (number of the allocation).
        """
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
        """Train, wait or exit, as a trial's process does after reading directives.

        Exit as killed if the trial is to be killed or has no allocation. See `next_action` for the
        other cases.
        """
        desired = trial.allocation.desired_state if trial.allocation else DesiredState.KILL
        if desired is DesiredState.KILL:
            self._exit(run, trial, "killed")
            return
        must_stop = desired is DesiredState.PREEMPT
        match next_action(
            trial.length,
            trial.reached,
            trial.decided_length,
            is_closed=trial.closed,
            must_stop=must_stop,
        ):
            case NextAction.TRAIN:
                if run.stop is None:
                    self._train_on(run, trial)
            case NextAction.COMPLETE:
                self._exit(run, trial, "completed")
            case NextAction.YIELD:
                self._exit(run, trial, "preempted")
            case NextAction.IDLE:
                self._exit(run, trial, "idle")

    def _train_on(self, run: SimulatedRun, trial: TrialState) -> None:
        """Schedule the run's next validation: at the validation period or at the trial's length."""
        assert trial.length is not None
        run.stop = next_stop(run.steps, trial.length, self._schedule.validation_period(trial))
        if self._clock.now_ms - run.since_ms >= 1:
            # The run has waited. In uninterrupted training, `since_ms` keeps fractions of a ms.
            run.since_ms = self._clock.now_ms
        due_ms = round(run.since_ms + (run.stop - run.steps) * run.curve.batch_ms)
        self._clock.call_at(due_ms, partial(self._validate_at_stop, run, run.stop))

    def _validate_at_stop(self, run: SimulatedRun, stop: int) -> None:
        """Report the validation at batch `stop`, and the length if `stop` is the trial's length.

        Do nothing if the run has exited or has another stop now.
        """
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
        """Return the number of batches that other trials trained in the trial's first weights.

        The number is the sum over all ancestors: a copy starts from a checkpoint of another trial,
        which may be a copy itself. Return 0 for a trial that is no copy.
        """
        first_checkpoint = trial.inherited_checkpoint
        if first_checkpoint is None:
            return 0
        if trial.trial_id not in self._inherited:
            parent: TrialState = self._actors.read_state(addresses.trial(first_checkpoint.trial_id))
            batches = self._inherited_batches(parent) + first_checkpoint.steps_completed
            self._inherited[trial.trial_id] = batches
        return self._inherited[trial.trial_id]

    def _exit(self, run: SimulatedRun, trial: TrialState, reason: str) -> None:
        """End a run: update the usage and post the exit to the trial.

        If a run is preempted during training, post a checkpoint first.
        """
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
        """Add the batches from `run.steps` to `steps` to the usage, and advance the run."""
        known_batches = run.curve.known_batches
        usage = self.usage
        usage.batches += steps - run.steps
        usage.units += trial.settings.lengths.units(steps - run.steps, trial.hparams)
        if known_batches is not None:
            known_batches -= self._inherited_batches(trial)
            usage.extrapolated_batches += max(0, steps - max(known_batches, run.steps))
        run.since_ms += (steps - run.steps) * run.curve.batch_ms
        run.steps = steps


def _checkpoint(run: SimulatedRun, trial: TrialState) -> CheckpointReported:
    uuid = f"{run.trial_id}-{run.epoch}-{run.steps}"
    path = f"{trial.experiment_id}/{run.trial_id}/{run.epoch}/{uuid}"
    return CheckpointReported(
        run.epoch, CheckpointRef(uuid, run.trial_id, run.steps, path, ""), size_bytes=0, files=0
    )
