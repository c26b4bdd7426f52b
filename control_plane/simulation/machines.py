"""Simulated machines: their trials follow courses instead of training.

As a real agent's do, they learn from the agent's state which allocations are theirs and from a
trial's state what it is to do. A trial trains to its target, validates on the way where the
configuration says so, and at the target checkpoints before it says that it is there. Nothing
fails, and starting, validating and checkpointing take no time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from control_plane.actors import addresses
from control_plane.actors.agent import AgentState
from control_plane.actors.agent_messages import AgentEnrolled
from control_plane.actors.records import CheckpointRef
from control_plane.actors.trial_messages import (
    AllocationExited,
    CheckpointReported,
    ContainerStateReported,
    LengthReported,
    ValidationReported,
)
from control_plane.actors.trial_state import AllocationState, TrialState, Wish
from control_plane.simulation.clock import Clock
from control_plane.simulation.courses import Course, Courses
from control_plane.simulation.mail import Mail

# What most machines with accelerators have.
SLOTS_PER_MACHINE = 8

Period = Callable[[TrialState], int]
"""Batches after which a trial validates, whatever its target; 0: only there."""


def machine_slots(slots: int, slots_per_trial: int) -> list[int]:
    """The slots of each machine of a cluster with `slots`: whole trials fit into all but the last,
    which has what is left over.
    """
    each = max(1, slots_per_trial)
    each *= max(1, SLOTS_PER_MACHINE // each)
    full, rest = divmod(slots, each)
    return [each] * full + [rest] * (rest > 0)


@dataclass(slots=True)
class Run:
    """An allocation on its machine, at batch `steps` since `since_ms`. `stop`: the batch that it
    trains to, None while it waits for a word. `before`: the batches of the trials whose copy it is.
    """

    trial_id: int
    epoch: int
    course: Course
    slots: int
    placed_ms: int
    steps: int
    since_ms: float
    stop: int | None = None
    before: int = 0

    @property
    def known_batches(self) -> int | None:
        """How far its course is known, in batches of the trial's own."""
        known = self.course.known_batches
        return None if known is None else known - self.before


@dataclass(slots=True)
class Account:
    """What all trials together used: batches, of which `beyond` are not known from the courses,
    the configuration's units, and slot-time.
    """

    batches: int = 0
    beyond: int = 0
    units: float = 0.0
    slot_ms: int = 0


class Machines:
    """The machines of a simulated pool."""

    def __init__(self, clock: Clock, mail: Mail, courses: Courses, period: Period) -> None:
        self.account = Account()
        self._clock = clock
        self._mail = mail
        self._courses = courses
        self._period = period
        self._runs: dict[int, Run] = {}
        self._epochs: dict[int, int] = {}
        self._before: dict[int, int] = {}

    def enrol(self, pool: str, slots: list[int]) -> None:
        """Brings machines into the pool, each with so many slots."""
        digits = len(str(len(slots)))
        for number, count in enumerate(slots, 1):
            name = f"machine-{number:0{digits}}"
            held = tuple((slot, "virtual", f"{name}.{slot}", "virtual") for slot in range(count))
            self._mail.post(addresses.agent(name), AgentEnrolled(name, pool, held))
        self._mail.deliver()

    def look_at_agent(self, agent: AgentState) -> None:
        """Starts what belongs on the agent and was not started."""
        for desired in agent.desired:
            if self._epochs.get(desired.trial_id, 0) < desired.epoch:
                self._epochs[desired.trial_id] = desired.epoch
                self._start(desired.trial_id, desired.epoch, len(desired.slots))

    def look_at_trial(self, trial: TrialState) -> None:
        """Follows a change of what the trial is to do."""
        run = self._runs.get(trial.trial_id)
        if run is not None and run.epoch == trial.epoch:
            self._follow(run, trial)

    def _start(self, trial_id: int, epoch: int, slots: int) -> None:
        trial: TrialState = self._mail.state(addresses.trial(trial_id))
        if trial.epoch != epoch or trial.status.final:
            return
        now_ms = self._clock.now_ms
        steps = trial.checkpoint.steps_completed if trial.checkpoint else 0
        course = self._courses.course(trial)
        run = Run(trial_id, epoch, course, slots, now_ms, steps, now_ms)
        run.before = self._batches_before(trial)
        self._runs[trial_id] = run
        running = ContainerStateReported(epoch, AllocationState.RUNNING)
        self._mail.post(addresses.trial(trial_id), running)
        self._follow(run, trial)

    def _batches_before(self, trial: TrialState) -> int:
        """A copy goes on, along the course of its own hyperparameters, where its original was."""
        origin = trial.inherited
        if origin is not None and trial.trial_id not in self._before:
            before = self._before.get(origin.trial_id, 0)
            self._before[trial.trial_id] = before + origin.steps_completed
        return self._before.get(trial.trial_id, 0)

    def _follow(self, run: Run, trial: TrialState) -> None:
        """What a trial's process does when it reads its directives."""
        wish = trial.allocation.wish if trial.allocation else Wish.KILL
        if wish is Wish.KILL:
            self._exit(run, trial, "killed")
        elif trial.length is not None and trial.length > trial.reached:
            if wish is Wish.PREEMPT:
                self._exit(run, trial, "preempted")
            elif run.stop is None:
                self._train(run, trial)
        elif trial.closed:
            self._exit(run, trial, "completed")
        elif wish is Wish.PREEMPT:
            self._exit(run, trial, "preempted")
        elif trial.length is not None and trial.length <= trial.answered:
            self._exit(run, trial, "idle")

    def _train(self, run: Run, trial: TrialState) -> None:
        assert trial.length is not None
        period = self._period(trial)
        due = run.steps + period - run.steps % period if period else trial.length
        run.stop = max(run.steps, min(due, trial.length))
        if self._clock.now_ms - run.since_ms >= 1:
            # It has waited; otherwise the fractions of a ms add up.
            run.since_ms = self._clock.now_ms
        due_ms = round(run.since_ms + (run.stop - run.steps) * run.course.batch_ms)
        self._clock.at(due_ms, partial(self._stop, run, run.stop))

    def _stop(self, run: Run, stop: int) -> None:
        """Validates where it stopped; what was stopped before it got there stays where it is."""
        if self._runs.get(run.trial_id) is not run or run.stop != stop:
            return
        address = addresses.trial(run.trial_id)
        trial: TrialState = self._mail.state(address)
        self._reach(run, trial, stop)
        run.stop = None
        metric = run.course.metric(run.before + stop)
        self._mail.post(address, ValidationReported(run.epoch, stop, metric))
        if stop == trial.length:
            self._mail.post(address, _checkpoint(run, trial))
            self._mail.post(address, LengthReported(run.epoch, stop, metric))
        self._mail.deliver()

    def _exit(self, run: Run, trial: TrialState, reason: str) -> None:
        del self._runs[run.trial_id]
        address = addresses.trial(run.trial_id)
        if run.stop is not None:
            trained = int((self._clock.now_ms - run.since_ms) / run.course.batch_ms)
            self._reach(run, trial, min(run.stop, run.steps + trained))
            if reason == "preempted":
                self._mail.post(address, _checkpoint(run, trial))
        self.account.slot_ms += (self._clock.now_ms - run.placed_ms) * run.slots
        self._mail.post(address, AllocationExited(run.epoch, reason))

    def _reach(self, run: Run, trial: TrialState, steps: int) -> None:
        """Takes note of the batches up to `steps`."""
        known = run.known_batches
        account = self.account
        account.batches += steps - run.steps
        account.units += trial.settings.lengths.units(steps - run.steps, trial.hparams)
        if known is not None:
            account.beyond += max(0, steps - max(known, run.steps))
        run.since_ms += (steps - run.steps) * run.course.batch_ms
        run.steps = steps


def _checkpoint(run: Run, trial: TrialState) -> CheckpointReported:
    uuid = f"{run.trial_id}-{run.epoch}-{run.steps}"
    path = f"{trial.experiment_id}/{run.trial_id}/{run.epoch}/{uuid}"
    return CheckpointReported(
        run.epoch, CheckpointRef(uuid, run.trial_id, run.steps, path, ""), size_bytes=0, files=0
    )
