"""Searches on simple learning curves, with results that a reader can compute by hand."""

from dataclasses import dataclass, field

from control_plane.actors.job_row import JobRow
from control_plane.actors.lengths import Lengths
from control_plane.actors.messages.experiment import ExperimentSubmitted
from control_plane.actors.records import Status, TrialSettings
from control_plane.actors.trial.state import TrialState
from control_plane.searchers.era_rules import LENGTH_ERA
from control_plane.searchers.halving.asynchronous import HalvingPlan
from control_plane.searchers.method import MethodPlan
from control_plane.searchers.methods.random import RandomPlan
from control_plane.searchers.search import SearchPlan
from control_plane.searchers.space import Double, Group

BATCHES = Lengths("batches")
SPACE = Group({"x": Double(0.0, 1.0)})


@dataclass(frozen=True)
class ConstantCurve:
    """A learning curve with a constant metric and a constant speed."""

    value: float | None
    batch_ms: float
    known_batches: int | None = None

    def metric(self, batches: int) -> float | None:
        return self.value


@dataclass
class CurvesByNumber:
    """Constant curves by trial number: trial i has metric i + 1 and the i-th speed.

    Further trials have the last speed. `started`: numbers of the trials in the order of their runs.
    """

    batch_ms: tuple[float, ...] = (1000.0,)
    known_batches: int | None = None
    started: list[int] = field(default_factory=list)

    def curve_for(self, trial: TrialState) -> ConstantCurve:
        self.started.append(trial.number)
        speed = self.batch_ms[min(trial.number, len(self.batch_ms) - 1)]
        return ConstantCurve(float(trial.number + 1), speed, self.known_batches)


def random_plan(length: int, trials: int, concurrent: int = 0) -> RandomPlan:
    return RandomPlan(length, trials, concurrent, LENGTH_ERA)


def halving_plan(trials: int, concurrent: int, *, stops: bool = False) -> HalvingPlan:
    """Return a halving plan with rungs at 1, 3 and 9 batches; a rung promotes a third."""
    return HalvingPlan(9, 3, 3.0, trials, concurrent, True, LENGTH_ERA, stops=stops)


def submission(
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


def trial(number: int = 0, seed: int = 1, **hparams: object) -> TrialState:
    return TrialState(
        trial_id=number + 1,
        experiment_id=1,
        number=number,
        hparams=hparams,
        seed=seed,
        settings=submission(random_plan(1, 1)).settings,
        created_ms=0,
        experiment_status=Status.ACTIVE,
    )
