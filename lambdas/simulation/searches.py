"""The experiments of a simulated cluster: one small configuration of every family of searches, and
the trainings of its trials.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random
from typing import Any

from control_plane.actors.messages.experiment import ExperimentSubmitted
from control_plane.actors.records import Retention
from control_plane.config.check import check_config
from control_plane.config.experiment import ExperimentConfig
from control_plane.searchers.methods.random import RandomPlan
from control_plane.simulation.submission import simulated_submission, time_lengths
from control_plane.simulation.synthetic_curves import SyntheticCurves
from lambdas.simulation.checkpoints import CheckpointStore
from lambdas.simulation.training import BYTES_PER_SECOND, Training, hash_fraction

METRIC = "loss"
HOUR_MS = 3_600_000
# The most machines of a gang.
NODES_MAX = 4
# The share of trials whose code fails after its training, too.
BAD_ENDS = 0.3
# The share of searches in epochs of which only the trials know that they have so many batches.
IN_EPOCHS = 0.2
EPOCH_BATCHES = 10
BATCH_SIZE = 64
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
LENGTHS = frozenset({"max_length", "budget", "length_per_round"})
# Families whose outcome does not depend on which trial was faster.
DETERMINISTIC_FAMILIES = frozenset({"single", "random", "grid"})


@dataclass(frozen=True)
class Search:
    """A search as a user submits it. `failures_max`: how often the code of a trial fails at
    most; `deadline_ms`: how long after its submission it has to be done, None for any time.
    """

    family: str
    config: ExperimentConfig
    message: ExperimentSubmitted
    learning_curves: SyntheticCurves
    failures_max: int
    batch_seconds: float
    deadline_ms: int | None = None


@dataclass(frozen=True, slots=True)
class PoolCapacity:
    """The largest machines of a pool: their slots, and how many of them there may be."""

    slots: int
    machines: int = 1


def sample_search(random: Random, seed: int, capacity: PoolCapacity) -> Search:
    """Sample a search of any family. Its trials train for some minutes to an hour, on one machine
    or, if the pool has several that are alike, on all slots of several. Some have a deadline.
    """
    family = random.choice(sorted(SEARCHES))
    failures_max = random.choice((0, 0, 1, 2))
    periods = random.choice(((0, 0), (20, 0), (0, 15), (20, 10)))
    nodes = 1
    if capacity.machines > 1 and random.random() < 0.25:
        nodes = random.randint(2, min(NODES_MAX, capacity.machines))
    slots = nodes * capacity.slots if nodes > 1 else random.randint(1, capacity.slots)
    in_epochs = hash_fraction(seed, "epochs") < IN_EPOCHS
    config = _config(family, periods, slots, nodes > 1, in_epochs)
    batch_seconds = 10 ** random.uniform(0.3, 1.7)
    search = _search(family, config, seed, failures_max, batch_seconds)
    deadline_ms = random.choice((None, None, random.randint(1, 12) * HOUR_MS))
    return replace(search, deadline_ms=deadline_ms)


def parallel_random_search(trials: int, seed: int, batch_seconds: float = 30.0) -> Search:
    """Return a random search of so many trials, all of them at once."""
    search = _search("random", _config("random", (0, 0), 1, False), seed, 0, batch_seconds)
    method = search.message.plan.method
    assert isinstance(method, RandomPlan)
    plan = replace(
        search.message.plan, method=replace(method, max_trials=trials, max_concurrent_trials=0)
    )
    return replace(search, message=replace(search.message, plan=plan))


def _search(
    family: str, config: ExperimentConfig, seed: int, failures_max: int, batch_seconds: float
) -> Search:
    message = simulated_submission(config)
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
    lengths, unit_batches = time_lengths(config), 1
    if lengths.counts_epochs:
        # As the trials find it in their data.
        lengths = replace(lengths, records_per_epoch=EPOCH_BATCHES * BATCH_SIZE)
        unit_batches = EPOCH_BATCHES
    learning_curves = SyntheticCurves(
        space=plan.space,
        lengths=lengths,
        full_length=plan.method.max_length,
        smaller_is_better=True,
        seed=seed,
        unit_seconds=batch_seconds * unit_batches,
    )
    return Search(family, config, message, learning_curves, failures_max, batch_seconds)


class Searches:
    """The searches by name: the source of their trials' trainings."""

    def __init__(self, checkpoints: CheckpointStore) -> None:
        self.by_name: dict[str, Search] = {}
        self._checkpoints = checkpoints

    def training(self, spec: Mapping[str, Any]) -> Training:
        """Return a process's training, as described in TrainingSource."""
        search = self.by_name[spec["search"]]
        seed = spec["trial_seed"]
        return Training(
            learning_curve=search.learning_curves.sampled_curve(spec["hparams"], seed),
            metric=METRIC,
            validation_period=_period(spec, "min_validation"),
            checkpoint_period=_period(spec, "min_checkpoint"),
            checkpoint_bytes=round(
                BYTES_PER_SECOND * 10 ** (2 * hash_fraction(seed, "size") - 0.7)
            ),
            failing_batches=failing_batches(search, seed),
            bad_ends_until=_failures(search, seed) if ends_badly(seed) else 0,
            time_metric=search.config.time_metric,
            inherited_batches=self._inherited_batches(spec),
            epoch_batches=EPOCH_BATCHES,
        )

    def _inherited_batches(self, spec: Mapping[str, Any]) -> int:
        reference = spec["inherited"]
        return self._checkpoints.batches_in(reference) if reference else 0


def failing_batches(search: Search, trial_seed: int) -> tuple[int, ...]:
    """Return the batches at which a trial's code fails, once each."""
    count = max(0, _failures(search, trial_seed) - ends_badly(trial_seed))
    last_batch = 30
    return tuple(int(hash_fraction(trial_seed, "failure", n) * last_batch) for n in range(count))


def ends_badly(trial_seed: int) -> bool:
    """Return whether the remaining failures of a trial's code occur after its training."""
    return hash_fraction(trial_seed, "end") < BAD_ENDS


def _period(spec: Mapping[str, Any], name: str) -> int:
    """Return a period of the specification in batches."""
    batches: int = spec[f"{name}_batches"]
    epochs: int = spec.get(f"{name}_epochs", 0)
    return batches or epochs * EPOCH_BATCHES


def _failures(search: Search, trial_seed: int) -> int:
    return int(hash_fraction(trial_seed, "failures") * (search.failures_max + 1))


@lru_cache(maxsize=256)
def _config(
    family: str,
    periods: tuple[int, int],
    slots: int,
    on_several_nodes: bool,
    in_epochs: bool = False,
) -> ExperimentConfig:
    validation, checkpoint = periods
    options = {
        name: _length(value["batches"], in_epochs) if name in LENGTHS else value
        for name, value in SEARCHES[family].items()
    }
    hparams: dict[str, Any] = {"global_batch_size": BATCH_SIZE, "n": BATCHES}
    if family == "single":
        hparams = {"global_batch_size": BATCH_SIZE}
    tree = {
        "name": family,
        # A trial's class runs on one machine, a command may run on several.
        "entrypoint": "python train.py" if on_several_nodes else "model_def:Trial",
        "hyperparameters": hparams,
        "searcher": {"name": family, "metric": METRIC, **options},
        "resources": {"slots_per_trial": slots},
        "min_validation_period": _length(validation, in_epochs),
        "min_checkpoint_period": {"batches": checkpoint},
        "reproducibility": {"experiment_seed": 1},
    }
    return check_config(json.dumps(tree))


def _length(batches: int, in_epochs: bool) -> dict[str, int]:
    return {"epochs": batches // EPOCH_BATCHES} if in_epochs else {"batches": batches}
