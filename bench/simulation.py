"""Searches in virtual time: speed of the simulation, use of workers, and the best result for a
budget, next to peers on the same curves.
"""

import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt
from statistics import mean, median, stdev
from typing import NamedTuple

from bench import peers
from bench.curve_table import DIVISOR, EPOCHS, RUNGS, SPACE, curves, epoch_seconds, row_of
from bench.figures import (
    Row,
    Scale,
    at_least,
    at_most,
    beats,
    number,
    progress,
    row_without_target,
    row_without_value,
)
from bench.simulation_peers import Best
from control_plane.actors.lengths import Lengths
from control_plane.actors.messages.experiment import ExperimentSubmitted
from control_plane.actors.records import TrialSettings
from control_plane.actors.trial.state import TrialState
from control_plane.searchers.era_rules import LENGTH_ERA
from control_plane.searchers.halving.asynchronous import HalvingPlan
from control_plane.searchers.search import SearchPlan
from control_plane.simulation.experiment import SimulationResult, simulate_experiment

RATE_MIN = 1_000
FLAT_MAX = 1.3
LINEAR_MIN_PERCENT = 90
# A difference of means below this number of standard errors may be chance.
ERRORS_MAX = 2
UNIT = "trials/s"


class Search(NamedTuple):
    """An ASHA search on the table's curves. `stops`: trials are stopped instead of promoted."""

    workers: int
    trials: int
    seed: int = 7
    stops: bool = True


@dataclass(slots=True)
class TableCurve:
    """A learning curve from the table that counts the read epochs."""

    batch_ms: float
    losses: list[float]
    began_ms: int
    best: Best | None
    epochs: int = 0
    known_batches: int | None = None

    def metric(self, batches: int) -> float:
        """Return the loss after `batches` epochs, and report all new epochs to `best`."""
        if self.best is not None:
            for epoch in range(self.epochs + 1, batches + 1):
                self.best.take(epoch, self.losses[epoch - 1])
        self.epochs = batches
        return self.losses[batches - 1]


class TableCurves:
    """The learning curves of trials by id. `best` receives the measured losses."""

    def __init__(self, best: Best | None = None) -> None:
        self.by_trial: dict[int, TableCurve] = {}
        self._best = best

    def curve_for(self, trial: TrialState) -> TableCurve:
        """Return the trial's learning curve. The first call makes the curve."""
        known = self.by_trial.get(trial.trial_id)
        if known is not None:
            return known
        row = row_of(trial.hparams)
        ms = 1000 * epoch_seconds()[row]
        course = TableCurve(ms, curves()[row], trial.created_ms, self._best)
        self.by_trial[trial.trial_id] = course
        return course


def simulation(scale: Scale) -> Iterator[Row]:
    """Yield the simulator's rates, the speed-up by workers, and the best losses of searches."""
    # Computed before the timing, and frozen so that the garbage collector ignores the tables.
    curves(), epoch_seconds()
    gc.freeze()
    yield from _rates(scale)
    yield from _measure_speed_up(scale)
    yield from _compare_best_losses(scale)


def run_search(search: Search, courses: TableCurves) -> SimulationResult:
    """Run a search to the end and return the result."""
    plan = HalvingPlan(
        max_length=EPOCHS,
        num_rungs=len(RUNGS),
        divisor=DIVISOR,
        max_trials=search.trials,
        max_concurrent_trials=search.workers,
        smaller_is_better=True,
        rules=LENGTH_ERA,
        stops=search.stops,
    )
    submission = ExperimentSubmitted(
        experiment_id=1,
        owner="bench",
        name="bench",
        config="",
        code_sha256="",
        plan=SearchPlan(plan, SPACE, search.seed),
        settings=TrialSettings("simulated", 1, 5, True, Lengths("batches"), 0),
        metric="loss",
        searcher="async_halving",
        paused=False,
    )
    return simulate_experiment(submission, search.workers, courses)


def busy_share(courses: TableCurves, workers: int) -> float:
    """Return the share of the workers' time with training until the last trial was created.

    Afterwards the rungs limit the search: no new trial replaces a waiting trial.
    """
    last_ms = max(course.began_ms for course in courses.by_trial.values())
    busy_ms = sum(
        min(last_ms - course.began_ms, course.epochs * course.batch_ms)
        for course in courses.by_trial.values()
    )
    return busy_ms / (workers * last_ms) if last_ms else 0.0


def _rates(scale: Scale) -> Iterator[Row]:
    rates: list[float] = []
    for workers, trials in scale.simulated:
        search = Search(workers, trials)
        rate = median(_rate(search) for _ in range(scale.runs))
        rates.append(rate)
        what = f"simulated ASHA, {workers} workers, {trials:,} trials"
        yield at_least(what, rate, RATE_MIN, UNIT, beside=f"promoting: {_promoting(search)}")
        with progress(f"syne-tune, {workers} workers, {trials} trials"):
            peer = peers.ask_peer("syne-tune-seconds", workers, trials)
        known = None if peer.answer is None else trials / float(str(peer.answer))
        beside = peer.reason if known is None else f"{number(known)} {UNIT}: {peer.name}"
        yield beats(f"{what}, against a peer", rate, known, UNIT, beside=beside)
    beside = " / ".join(map(number, rates)) + f" {UNIT}"
    what = "rate of the simulation, fewest workers over most"
    yield at_most(what, max(rates) / min(rates), FLAT_MAX, "x", beside=beside)


def _rate(search: Search) -> float:
    # As the command does.
    gc.disable()
    started = time.perf_counter()
    run_search(search, TableCurves())
    seconds = time.perf_counter() - started
    gc.enable()
    return search.trials / seconds


def _promoting(search: Search) -> str:
    return f"{number(_rate(search._replace(stops=False)))} {UNIT}"


def _measure_speed_up(scale: Scale) -> Iterator[Row]:
    workers, trials = scale.simulated[-1]
    one, many = TableCurves(), TableCurves()
    with progress(f"{trials} trials on 1 and on {workers} workers"):
        alone = run_search(Search(1, trials), one)
        together = run_search(Search(workers, trials), many)
    share = 100 * busy_share(many, workers) / busy_share(one, 1)
    what = f"speed-up of ASHA at {workers} workers until the last trial is created, of linear"
    yield at_least(what, share, LINEAR_MIN_PERCENT, "%", beside=f"{trials:,} trials")
    whole = alone.makespan_ms / together.makespan_ms
    trained = f"{alone.usage.batches:,} and {together.usage.batches:,} epochs"
    yield row_without_target(
        f"speed-up at {workers} workers to the end", whole, "x", beside=trained
    )


def _compare_best_losses(scale: Scale) -> Iterator[Row]:
    seeds, budget = scale.simulated_seeds, scale.simulated_epochs
    with progress(f"{seeds} searches of {budget} epochs"):
        ours = {stops: _best(seeds, budget, stops) for stops in (False, True)}
    for peer in ("optuna-best", "syne-tune-best"):
        with progress(f"{peer}, {seeds} searches of {budget} epochs"):
            answered = peers.ask_peer(peer, seeds, budget)
        for stops, losses in ours.items():
            kind = "stopping" if stops else "promoting"
            what = f"best loss of ASHA ({kind}) above that of {answered.name}"
            if answered.answer is None:
                yield row_without_value(what, answered.reason)
                continue
            assert isinstance(answered.answer, list)
            yield _row_of_difference(what, losses, answered.answer, budget)


def _best(seeds: int, budget: int, stops: bool) -> list[float]:
    found = []
    for seed in range(seeds):
        best = Best(budget)
        # Each trial trains at least an epoch, so that this number of trials covers the budget.
        run_search(Search(1, max(EPOCHS, budget // 2), seed, stops), TableCurves(best))
        assert best.epochs >= budget, (best.epochs, budget)
        found.append(best.loss)
    return found


def _row_of_difference(what: str, ours: list[float], theirs: list[float], budget: int) -> Row:
    error = sqrt((stdev(ours) ** 2 + stdev(theirs) ** 2) / len(ours))
    apart = (mean(ours) - mean(theirs)) / error if error else 0.0
    spread = " against ".join(f"{mean(item):.4f} ± {stdev(item):.4f}" for item in (ours, theirs))
    beside = f"{spread}: {len(ours)} seeds of {budget:,} epochs, mean ± standard deviation"
    return at_most(what, apart, ERRORS_MAX, "standard errors", beside=beside)
