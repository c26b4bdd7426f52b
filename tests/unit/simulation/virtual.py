"""Searches on courses that are simple enough to work out what comes of them."""

from dataclasses import dataclass, field

from control_plane.actors.experiment_messages import ExperimentSubmitted
from control_plane.actors.jobs import JobRow
from control_plane.actors.lengths import Lengths
from control_plane.actors.records import TrialSettings
from control_plane.actors.trial_state import TrialState
from control_plane.searchers.halving import HalvingPlan
from control_plane.searchers.random import RandomPlan
from control_plane.searchers.rules import LENGTH_ERA
from control_plane.searchers.search import MethodPlan, SearchPlan
from control_plane.searchers.space import Double, Group

BATCHES = Lengths("batches")
SPACE = Group({"x": Double(0.0, 1.0)})


@dataclass(frozen=True)
class Straight:
    """A metric that is the same wherever the trial validates."""

    value: float | None
    batch_ms: float
    known_batches: int | None = None

    def metric(self, batches: int) -> float | None:
        return self.value


@dataclass
class ByNumber:
    """Trial i has metric i + 1 and the i-th of the speeds, the last one for all further trials."""

    batch_ms: tuple[float, ...] = (1000.0,)
    known_batches: int | None = None
    started: list[int] = field(default_factory=list)

    def course(self, trial: TrialState) -> Straight:
        self.started.append(trial.number)
        speed = self.batch_ms[min(trial.number, len(self.batch_ms) - 1)]
        return Straight(float(trial.number + 1), speed, self.known_batches)


def random_search(length: int, trials: int, concurrent: int = 0) -> RandomPlan:
    return RandomPlan(length, trials, concurrent, LENGTH_ERA)


def halving(trials: int, concurrent: int, *, stops: bool = False) -> HalvingPlan:
    """Rungs at 1, 3 and 9 batches, of which one trial in 3 goes on."""
    return HalvingPlan(9, 3, 3.0, trials, concurrent, True, LENGTH_ERA, stops=stops)


def submitted(
    method: MethodPlan,
    *,
    slots: int = 1,
    max_slots: int | None = None,
    lengths: Lengths = BATCHES,
    seed: int = 7,
) -> ExperimentSubmitted:
    settings = TrialSettings("pool", slots, 5, True, lengths, 0)
    return ExperimentSubmitted(
        experiment_id=1,
        owner="me",
        name="virtual",
        config="",
        code_sha256="",
        plan=SearchPlan(method, SPACE, seed),
        settings=settings,
        metric="loss",
        searcher="virtual",
        paused=False,
        job=JobRow(max_slots=max_slots),
    )
