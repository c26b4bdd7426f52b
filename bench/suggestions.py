"""Bayesian search: the best values next to random search, and the cost of suggestions."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

from bench.figures import Row, Scale, at_most, fewer, number, progress
from control_plane.searchers.blob_store import MemoryBlobStore
from control_plane.searchers.era_rules import LENGTH_ERA
from control_plane.searchers.method import (
    CreateTrial,
    Event,
    MethodPlan,
    SuggestedPoints,
    TrialClosed,
    TrialLengthReached,
)
from control_plane.searchers.methods.bayesian import BayesianPlan, BayesianState
from control_plane.searchers.methods.random import RandomPlan
from control_plane.searchers.randomness import Generator
from control_plane.searchers.search import (
    SearchPlan,
    SearchStep,
    begin_search,
    expand_creates,
    handle_event,
    handle_external_input,
)
from control_plane.searchers.space import Categorical, Double, Group, Log, draw_hparams
from control_plane.suggestions.model import Observation, Problem, Stage, suggest_point

SUGGESTION_MS_MAX = 1_000.0
CONCURRENT = 4
STARTUP = 10
CREATE_MAX = 48
BRANIN_LEAST = 0.39788735772973816


class Function(NamedTuple):
    """A function of hyperparameters with the minimum 0."""

    name: str
    space: Group
    value: Callable[[Mapping[str, Any]], float]


def branin(at: Mapping[str, Any]) -> float:
    """Branin's function, least at three places."""
    x, y = at["x"], at["y"]
    dip: float = y - 5.1 / (4 * math.pi**2) * x**2 + 5 / math.pi * x - 6
    return dip**2 + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10 - BRANIN_LEAST


def rosenbrock(at: Mapping[str, Any]) -> float:
    """Rosenbrock's valley, in five dimensions."""
    x: list[float] = [at[f"x{i}"] for i in range(5)]
    return sum(100 * (b - a**2) ** 2 + (1 - a) ** 2 for a, b in pairwise(x))


def training(at: Mapping[str, Any]) -> float:
    """Shaped like the error of a network: the rate and the optimizer matter most, and together."""
    best_rate = {"sgd": -1.0, "momentum": -2.0, "adam": -3.0}[at["optimizer"]]
    worse = {"sgd": 0.3, "momentum": 0.1, "adam": 0.0}[at["optimizer"]]
    rate: float = (math.log10(at["rate"]) - best_rate) ** 2
    decay: float = 0.1 * (math.log10(at["decay"]) + 4) ** 2
    dropout: float = (at["dropout"] - 0.2) ** 2
    return worse + rate + decay + dropout


FUNCTIONS = (
    Function("Branin, 2 doubles", Group({"x": Double(-5, 10), "y": Double(0, 15)}), branin),
    Function(
        "Rosenbrock, 5 doubles", Group({f"x{i}": Double(-2, 2) for i in range(5)}), rosenbrock
    ),
    Function(
        "training, 2 logs, a double, a choice",
        Group(
            {
                "rate": Log(10, -5, 0),
                "decay": Log(10, -6, -2),
                "dropout": Double(0, 0.8),
                "optimizer": Categorical(("sgd", "momentum", "adam")),
            }
        ),
        training,
    ),
)


def suggestions(scale: Scale) -> Iterator[Row]:
    """Yield the best values of Bayesian and random searches, then the time of a suggestion."""
    trials, seeds = scale.suggested_trials, range(scale.suggestion_seeds)
    for function in FUNCTIONS:
        with progress(f"{function.name}, {len(seeds)} seeds"):
            model = BayesianPlan(1, trials, CONCURRENT, STARTUP, LENGTH_ERA)
            chance = RandomPlan(1, trials, CONCURRENT, LENGTH_ERA)
            ours, drawn = ([best(function, plan, s) for s in seeds] for plan in (model, chance))
        won = sum(one < other for one, other in zip(ours, drawn, strict=True))
        what = f"best of {trials} by bayesian: {function.name}"
        beside = f"random: {number(median(drawn))}; bayesian better in {won} of {len(seeds)}"
        yield fewer(what, median(ours), median(drawn), "median", beside=beside)
    few, many = scale.known_trials
    with progress(f"a suggestion, {many:,} trials known"):
        # The first suggestion of a process imports the model.
        _suggestion_ms(10)
        before, after = _suggestion_ms(few), _suggestion_ms(many)
    what = f"a suggestion with {many:,} trials of 5 doubles"
    yield at_most(what, after, SUGGESTION_MS_MAX, "ms", beside=f"with {few:,}: {number(before)} ms")


def best(function: Function, method: MethodPlan, seed: int) -> float:
    """Return the least value of a search in which trials end in their order of creation."""
    plan, generator, parts = (
        SearchPlan(method, function.space, seed),
        Generator.from_seed(seed),
        MemoryBlobStore(),
    )
    problem = Problem(function.space, True, True, seed)
    known: list[Observation] = []
    events: deque[Event] = deque()
    step = begin_search(plan, parts)
    while True:
        for made in _created_trials(step):
            known.append(Observation(made.hparams, Stage.RUNNING))
            value = function.value(made.hparams)
            events += (TrialLengthReached(made.trial, 1, value), TrialClosed(made.trial, 1.0))
        state, at = step.state, step.state.method
        if step.more:
            step = expand_creates(plan, state, generator, CREATE_MAX, parts)
        elif isinstance(at, BayesianState) and at.awaits_external_input:
            advice = SuggestedPoints(at.answered, (suggest_point(problem, known, at.answered),))
            step = handle_external_input(plan, state, generator, advice, CREATE_MAX, parts)
        elif not events:
            return min(one.metric for one in known if one.metric is not None)
        else:
            event = events.popleft()
            if isinstance(event, TrialLengthReached):
                ended = known[event.trial]._replace(stage=Stage.COMPLETE, metric=event.metric)
                known[event.trial] = ended
            step = handle_event(plan, state, generator, event, CREATE_MAX, parts)


def _created_trials(step: SearchStep) -> Iterator[CreateTrial]:
    return (operation for operation in step.operations if isinstance(operation, CreateTrial))


def _suggestion_ms(trials: int) -> float:
    space = FUNCTIONS[1].space
    generator = Generator.from_seed(7)
    points = [draw_hparams(space, generator, maxval_drawn=True) for _ in range(trials)]
    known = [Observation(point, Stage.COMPLETE, rosenbrock(point)) for point in points]
    taken: list[float] = []
    for n in range(5):
        started = time.perf_counter()
        suggest_point(Problem(space, True, True, 7), known, n)
        taken.append((time.perf_counter() - started) * 1000)
    return median(taken)
