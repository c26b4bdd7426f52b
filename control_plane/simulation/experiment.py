"""One experiment in virtual time, from its submission to its end."""

from collections.abc import Callable
from dataclasses import dataclass

from control_plane.actors import addresses
from control_plane.actors.experiment_messages import ExperimentSubmitted
from control_plane.actors.experiment_state import ExperimentState
from control_plane.actors.pool import PoolState
from control_plane.actors.pool_messages import PoolConfigured
from control_plane.simulation.clock import Clock
from control_plane.simulation.courses import Courses
from control_plane.simulation.machines import Account, Machines, Period, machine_slots
from control_plane.simulation.mail import Actor, Mail

TOLD_AFTER_TRIALS = 100

Told = Callable[[int], None]
"""Takes how many trials have ended, every now and then."""


Advise = Callable[[Actor], object | None]
"""Answers an experiment that waits for a suggestion, None where it waits for none."""


class SimulationStuck(ValueError):
    """Nothing is due any more, and the experiment has not ended."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """An experiment that has ended. `best` holds (virtual ms, metric) of each improvement."""

    experiment: ExperimentState
    makespan_ms: int
    account: Account
    best: tuple[tuple[int, float], ...]

    def slot_use(self, slots: int) -> float:
        """The share of the slot-time of `slots` that trials had."""
        return self.account.slot_ms / (slots * self.makespan_ms) if self.makespan_ms else 0.0


def simulate(
    submission: ExperimentSubmitted,
    slots: int,
    courses: Courses,
    *,
    period: Period = lambda trial: 0,
    advise: Advise = lambda experiment: None,
    told: Told = lambda ended: None,
) -> Outcome:
    """Runs a submitted experiment on an empty pool of `slots` slots, submitted at time 0.

    Whom it asks for advice answers in no time.

    Raises:
        SimulationStuck: it waits for something that never comes; the message says what.
    """
    return _Simulation(submission, slots, courses, period, advise).run(told)


class _Simulation:
    def __init__(
        self,
        submission: ExperimentSubmitted,
        slots: int,
        courses: Courses,
        period: Period,
        advise: Advise,
    ) -> None:
        self._advise = advise
        self._clock = Clock()
        self._mail = Mail(self._clock, self._look)
        self._machines = Machines(self._clock, self._mail, courses, period)
        self._best: list[tuple[int, float]] = []
        self._address = addresses.experiment(submission.experiment_id)
        self._pool = addresses.pool(submission.settings.pool)
        self._mail.post(self._pool, PoolConfigured(submission.settings.pool))
        sizes = machine_slots(slots, submission.settings.slots)
        self._machines.enrol(submission.settings.pool, sizes)
        self._mail.post(self._address, submission)

    def run(self, told: Told) -> Outcome:
        self._mail.deliver()
        ended = 0
        while not (experiment := self._experiment()).status.final:
            if not self._clock.advance():
                raise SimulationStuck(self._stuck(experiment))
            done = experiment.trials - experiment.trials_open
            if done >= ended + TOLD_AFTER_TRIALS:
                ended = done
                told(done)
        assert experiment.ended_ms is not None
        return Outcome(experiment, experiment.ended_ms, self._machines.account, tuple(self._best))

    def _experiment(self) -> ExperimentState:
        state = self._mail.state(self._address)
        assert isinstance(state, ExperimentState)
        return state

    def _look(self, actor: Actor) -> None:
        state = actor.state
        match actor.kind:
            case "trial" if state is not None:
                self._machines.look_at_trial(state)
            case "agent" if state is not None:
                self._machines.look_at_agent(state)
            case "experiment":
                self._note_best(state)
                answer = self._advise(actor)
                if answer is not None:
                    self._mail.post(self._address, answer)

    def _note_best(self, state: ExperimentState) -> None:
        best = state.best_metric
        if best is not None and (not self._best or self._best[-1][1] != best):
            self._best.append((self._clock.now_ms, best))

    def _stuck(self, experiment: ExperimentState) -> str:
        pool: PoolState = self._mail.state(self._pool)
        waits = f": {pool.waits}" if pool.waits else ""
        return (
            f"after {self._clock.now_ms / 1000:g} s nothing goes on, with"
            f" {experiment.trials_open} of {experiment.trials} trials open{waits}"
        )
