"""The simulation of one experiment in virtual time, from the submission to the end."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from control_plane.actors import addresses
from control_plane.actors.experiment.state import ExperimentState
from control_plane.actors.experiment.suggestions import awaited_suggestion
from control_plane.actors.messages.experiment import ExperimentSubmitted
from control_plane.actors.messages.pool import PoolConfigured
from control_plane.actors.pool.actor import PoolState
from control_plane.searchers.method import SuggestedPoints
from control_plane.simulation.actor_system import ActorSystem, SimulatedActor
from control_plane.simulation.learning_curves import LearningCurves
from control_plane.simulation.machines import (
    Machines,
    UsageTotals,
    ValidationSchedule,
    machine_slots,
)
from control_plane.simulation.virtual_clock import VirtualClock

PROGRESS_EVERY_TRIALS = 100
"""The number of ended trials between two calls of a ProgressCallback."""
EVENTS_PER_CALL = 200
"""The number of events of the clock between two calls of `on_events`."""

ProgressCallback = Callable[[int], None]
"""A function that receives the number of ended trials."""

SuggestionSource = Callable[[ExperimentState, Mapping[str, object]], SuggestedPoints]
"""A function that answers an experiment's open request, from the actor's state and parts."""


class SimulationStuck(ValueError):
    """The error for an experiment that has not ended although no event is scheduled."""


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """The result of the simulation of an experiment."""

    experiment: ExperimentState
    """The state after the end."""
    makespan_ms: int
    """The virtual time from the submission to the end."""
    usage: UsageTotals
    improvements: tuple[tuple[int, float], ...]
    """Each improvement of the best metric: virtual ms and the new best metric."""

    def slot_utilization(self, slots: int) -> float:
        """Return the share of the time of `slots` slots in which allocations used the slots.

        0 if the experiment took no time.
        """
        return self.usage.slot_ms / (slots * self.makespan_ms) if self.makespan_ms else 0.0


def simulate_experiment(
    submission: ExperimentSubmitted,
    slots: int,
    curves: LearningCurves,
    *,
    validation_schedule: ValidationSchedule | None = None,
    suggest: SuggestionSource | None = None,
    on_progress: ProgressCallback = lambda ended: None,
    on_events: Callable[[], None] = lambda: None,
) -> SimulationResult:
    """Run an experiment in virtual time on an otherwise empty pool, and return the result.

    Args:
        submission: the message that submits the experiment, at time 0.
        slots: the number of slots of the pool.
        suggest: required for Bayesian searches.
        on_progress: called after every PROGRESS_EVERY_TRIALS ended trials.
        on_events: called after every EVENTS_PER_CALL events. May raise to end the simulation.

    Raises:
        SimulationStuck: the experiment waits for an event that never occurs. The message contains
            the pool's reason, if known.
    """
    return _Simulation(
        submission, slots, curves, validation_schedule or ValidationSchedule(), suggest
    ).run(on_progress, on_events)


class _Simulation:
    """A single simulation of an experiment."""

    def __init__(
        self,
        submission: ExperimentSubmitted,
        slots: int,
        curves: LearningCurves,
        schedule: ValidationSchedule,
        suggest_points: SuggestionSource | None,
    ) -> None:
        self._clock = VirtualClock()
        self._actors = ActorSystem(self._clock, self._observe_actor)
        self._machines = Machines(self._clock, self._actors, curves, schedule)
        self._suggest_points = suggest_points
        self._improvements: list[tuple[int, float]] = []
        self._address = addresses.experiment(submission.experiment_id)
        self._pool = addresses.pool(submission.settings.pool)
        self._actors.post_messages(self._pool, PoolConfigured(submission.settings.pool))
        sizes = machine_slots(slots, submission.settings.slots)
        self._machines.enrol_machines(submission.settings.pool, sizes)
        self._actors.post_messages(self._address, submission)

    def run(self, on_progress: ProgressCallback, on_events: Callable[[], None]) -> SimulationResult:
        """Run all events until the experiment has ended, and return the result.

        A _Simulation runs only once. Raises every error of `on_events` and `on_progress`.

        Args:
            on_progress: called with the number of ended trials, whenever at least
                PROGRESS_EVERY_TRIALS trials have ended since the last call.
            on_events: called after every EVENTS_PER_CALL events.

        Raises:
            SimulationStuck: no event is scheduled, but the experiment has not ended.
        """
        self._actors.deliver_messages()
        ended = events = 0
        while not (experiment := self._experiment()).status.is_final:
            if not self._clock.run_next():
                raise SimulationStuck(self._stuck_text(experiment))
            events += 1
            if events % EVENTS_PER_CALL == 0:
                on_events()
            done = experiment.trials - experiment.trials_open
            if done >= ended + PROGRESS_EVERY_TRIALS:
                ended = done
                on_progress(done)
        assert experiment.ended_ms is not None
        return SimulationResult(
            experiment, experiment.ended_ms, self._machines.usage, tuple(self._improvements)
        )

    def _experiment(self) -> ExperimentState:
        state = self._actors.read_state(self._address)
        assert isinstance(state, ExperimentState)
        return state

    def _observe_actor(self, actor: SimulatedActor) -> None:
        state = actor.state
        match actor.actor_type:
            case "trial" if state is not None:
                self._machines.observe_trial(state)
            case "agent" if state is not None:
                self._machines.observe_agent(state)
            case "experiment":
                self._record_improvement(state)
                self._answer_suggestion(actor)

    def _record_improvement(self, state: ExperimentState) -> None:
        best = state.best_metric
        if best is not None and (not self._improvements or self._improvements[-1][1] != best):
            self._improvements.append((self._clock.now_ms, best))

    def _answer_suggestion(self, actor: SimulatedActor) -> None:
        """Post a suggestion immediately if the experiment has an open request."""
        if awaited_suggestion(actor.state) is not None:
            assert self._suggest_points is not None, "no suggestions are available"
            self._actors.post_messages(
                self._address, self._suggest_points(actor.state, actor.parts)
            )

    def _stuck_text(self, experiment: ExperimentState) -> str:
        pool: PoolState = self._actors.read_state(self._pool)
        waits = f": {pool.wait_reason}" if pool.wait_reason else ""
        return (
            f"after {self._clock.now_ms / 1000:g} s no event is due, with"
            f" {experiment.trials_open} of {experiment.trials} trials open{waits}"
        )
