"""The experiments of a simulated cluster: one small configuration of every family of searches, and
what its trials train.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random
from typing import Any

from control_plane.actors.experiment_messages import ExperimentSubmitted
from control_plane.actors.records import Retention
from control_plane.config.check import check
from control_plane.config.experiment import ExperimentConfig
from control_plane.searchers.random import RandomPlan
from control_plane.simulation.submission import submission_of, time_lengths_of
from control_plane.simulation.synthetic import SyntheticCourses
from lambdas.simulation.checkpoints import Checkpoints
from lambdas.simulation.training import BYTES_PER_SECOND, Training, share_of

METRIC = "loss"
BATCHES = {"type": "int", "minval": 1, "maxval": 5, "count": 3}
SEARCHES: dict[str, dict[str, Any]] = {
    "single": {"max_length": {"batches": 60}},
    "random": {"max_length": {"batches": 60}, "max_trials": 4},
    "grid": {"max_length": {"batches": 40}, "max_concurrent_trials": 2},
    "sync_halving": {
        "num_rungs": 2,
        "divisor": 2,
        "max_length": {"batches": 40},
        "budget": {"batches": 160},
    },
    "async_halving": {
        "num_rungs": 2,
        "divisor": 2,
        "max_length": {"batches": 40},
        "max_trials": 4,
    },
    "adaptive": {"max_rungs": 2, "max_length": {"batches": 40}, "budget": {"batches": 240}},
    "adaptive_simple": {"max_rungs": 2, "max_length": {"batches": 40}, "max_trials": 4},
    "adaptive_asha": {
        "max_rungs": 2,
        "divisor": 2,
        "max_length": {"batches": 40},
        "max_trials": 5,
        "max_concurrent_trials": 2,
    },
    "pbt": {
        "population_size": 3,
        "num_rounds": 2,
        "length_per_round": {"batches": 30},
        "replace_function": {"truncate_fraction": 0.34},
        "explore_function": {"resample_probability": 0.2, "perturb_factor": 0.2},
    },
    "bayesian": {
        "max_length": {"batches": 40},
        "max_trials": 4,
        "startup_trials": 2,
        "max_concurrent_trials": 2,
    },
}
# Those whose outcome does not depend on which trial was faster.
ORDERLY = frozenset({"single", "random", "grid"})


@dataclass(frozen=True)
class Search:
    """A submission, the configuration it is of, and how often an hour's worth of trials fails."""

    family: str
    config: ExperimentConfig
    message: ExperimentSubmitted
    courses: SyntheticCourses
    failures_max: int
    batch_seconds: float


@dataclass(frozen=True, slots=True)
class Room:
    """What a pool has for a trial: machines of so many slots, `machines` of them that are alike."""

    slots: int
    machines: int = 1


def drawn_search(random: Random, seed: int, room: Room) -> Search:
    """A search of any family. Its trials train for some minutes to an hour, on one machine or, if
    the pool has several that are alike, on all slots of two.
    """
    family = random.choice(sorted(SEARCHES))
    failures_max = random.choice((0, 0, 1, 2))
    periods = random.choice(((0, 0), (20, 0), (0, 15), (20, 10)))
    spread = room.machines > 1 and random.random() < 0.25
    slots = 2 * room.slots if spread else random.choice((1, 1, min(2, room.slots)))
    config = _config(family, periods, slots, spread)
    batch_seconds = 10 ** random.uniform(0.3, 1.7)
    return _search(family, config, seed, failures_max, batch_seconds)


def crowd(trials: int, seed: int) -> Search:
    """A random search of so many trials, all of them at once."""
    search = _search("random", _config("random", (0, 0), 1, False), seed, 0, 30.0)
    method = search.message.plan.method
    assert isinstance(method, RandomPlan)
    plan = replace(
        search.message.plan, method=replace(method, max_trials=trials, max_concurrent_trials=0)
    )
    return replace(search, message=replace(search.message, plan=plan))


def _search(
    family: str, config: ExperimentConfig, seed: int, failures_max: int, batch_seconds: float
) -> Search:
    message = submission_of(config)
    plan = replace(message.plan, seed=seed)
    message = replace(
        message,
        owner="user",
        config=config.to_json().decode(),
        code_sha256="0" * 64,
        plan=plan,
        settings=replace(message.settings, max_restarts=failures_max),
        retention=Retention(1, 1, 1),
    )
    courses = SyntheticCourses(
        space=plan.space,
        lengths=time_lengths_of(config),
        full_length=plan.method.max_length,
        smaller_is_better=True,
        seed=seed,
        unit_seconds=batch_seconds,
    )
    return Search(family, config, message, courses, failures_max, batch_seconds)


class Searches:
    """The searches by name, and what their trials train: see Trainings."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        self.by_name: dict[str, Search] = {}
        self._checkpoints = checkpoints

    def training(self, spec: Mapping[str, Any]) -> Training:
        """See Trainings."""
        search = self.by_name[spec["search"]]
        seed = spec["trial_seed"]
        return Training(
            course=search.courses.drawn(spec["hparams"], seed),
            metric=METRIC,
            validation_period=spec["min_validation_batches"],
            checkpoint_period=spec["min_checkpoint_batches"],
            checkpoint_bytes=round(BYTES_PER_SECOND * 10 ** (2 * share_of(seed, "size") - 0.7)),
            fails_at=failures(search, seed),
            time_metric=search.config.time_metric,
            begun_with=self._begun_with(spec),
        )

    def _begun_with(self, spec: Mapping[str, Any]) -> int:
        reference = spec["inherited"]
        return self._checkpoints.batches_in(reference) if reference else 0


def failures(search: Search, trial_seed: int) -> tuple[int, ...]:
    """The batches at which a trial's code fails, once each."""
    count = int(share_of(trial_seed, "failures") * (search.failures_max + 1))
    longest = 30
    return tuple(int(share_of(trial_seed, "failure", n) * longest) for n in range(count))


@lru_cache(maxsize=256)
def _config(family: str, periods: tuple[int, int], slots: int, spread: bool) -> ExperimentConfig:
    validation, checkpoint = periods
    hparams: dict[str, Any] = {"global_batch_size": 64, "n": BATCHES}
    if family == "single":
        hparams = {"global_batch_size": 64}
    tree = {
        "name": family,
        # A trial's class runs on one machine, a command may run on several.
        "entrypoint": "python train.py" if spread else "model_def:Trial",
        "hyperparameters": hparams,
        "searcher": {"name": family, "metric": METRIC, **SEARCHES[family]},
        "resources": {"slots_per_trial": slots},
        "min_validation_period": {"batches": validation},
        "min_checkpoint_period": {"batches": checkpoint},
        "reproducibility": {"experiment_seed": 1},
    }
    return check(json.dumps(tree))
