"""The searches of a simulated cluster: a small configuration of each search method, and the
trainings of the trials.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random
from typing import Any

from control_plane.actors.messages.experiment import ExperimentSubmitted
from control_plane.actors.records import DataRetention, Retention
from control_plane.config.check import check_config
from control_plane.config.experiment import ExperimentConfig
from control_plane.searchers.methods.random import RandomPlan
from control_plane.simulation.hash_fractions import hash_fraction
from control_plane.simulation.submission import simulated_submission, time_lengths
from control_plane.simulation.synthetic_curves import SyntheticCurves
from simulator.machines.checkpoints import CheckpointStore
from simulator.machines.training import BYTES_PER_SECOND, Training
from simulator.seeded.hangs import HANGS_MAX
from simulator.seeded.sampled_limits import with_trial_limits

METRIC = "loss"
HOUR_MS = 3_600_000
# The maximum number of machines of an allocation.
NODES_MAX = 4
# The share of trials in which the last failure of the code occurs after the training.
BAD_ENDS = 0.3
EPOCHS_SHARE = 0.2
"""The default share of searches whose lengths are in epochs. Only the trials know the size of an
epoch.
"""
HANG_RESTARTS_SHARE = 0.5
"""The share of searches with `hang_detection.action: restart`. The rest only notify."""
SHARED_SLOTS_SHARE = 0.5
"""The part of the searches with one slot for each trial whose trials share slots instead."""
SHARE = 0.4
"""The sampled share of a slot: two trials on each slot."""
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
LOW_USE_ENDS = 3
"""The policy of each search with a seed divisible by this number ends runs with low use."""
LENGTHS = frozenset({"max_length", "budget", "length_per_round"})
# The search methods whose outcome does not depend on the speed of the trials.
DETERMINISTIC_FAMILIES = frozenset({"single", "random", "grid"})


@dataclass(frozen=True)
class Search:
    """A search that a user submits."""

    family: str
    """The name of the search method: a key of SEARCHES."""
    config: ExperimentConfig
    message: ExperimentSubmitted
    """The submission, without an id and a pool."""
    learning_curves: SyntheticCurves
    failures_max: int
    """The maximum number of failures of a trial's code."""
    batch_seconds: float
    """The average duration of a batch."""
    deadline_ms: int | None = None
    """The time from the submission to the deadline. None without a deadline."""


@dataclass(frozen=True, slots=True)
class PoolCapacity:
    """The largest machines of a pool."""

    slots: int
    """The slots of a machine."""
    machines: int = 1
    """The maximum number of these machines."""


def sample_search(
    random: Random, seed: int, capacity: PoolCapacity, epochs_share: float = EPOCHS_SHARE
) -> Search:
    """Sample a search with a random method that fits into a pool.

    The trials train for some minutes to an hour. In a pool with several equal machines, a trial may
    use all slots of several machines; otherwise it uses a single machine. Some searches have a
    deadline. Some have a limit of each trial's time, or a restart window.

    Args:
        random: the source of most choices.
        seed: the seed of the search. It also decides whether lengths are in epochs, and the limits
            of trials.
        epochs_share: the share of searches whose lengths are in epochs.
    """
    family = random.choice(sorted(SEARCHES))
    failures_max = random.choice((0, 0, 1, 2))
    periods = random.choice(((0, 0), (20, 0), (0, 15), (20, 10)))
    nodes = 1
    if capacity.machines > 1 and random.random() < 0.25:
        nodes = random.randint(2, min(NODES_MAX, capacity.machines))
    slots = nodes * capacity.slots if nodes > 1 else random.randint(1, capacity.slots)
    in_epochs = hash_fraction(seed, "epochs") < epochs_share
    shares_slot = slots == 1 and hash_fraction(seed, "share") < SHARED_SLOTS_SHARE
    config = _config(family, periods, SHARE if shares_slot else slots, nodes > 1, in_epochs)
    batch_seconds = 10 ** random.uniform(0.3, 1.7)
    search = _search(family, config, seed, failures_max, batch_seconds)
    limited = with_trial_limits(search.message.settings, seed, batch_seconds)
    search = replace(search, message=replace(search.message, settings=limited))
    deadline_ms = random.choice((None, None, random.randint(1, 12) * HOUR_MS))
    return replace(search, deadline_ms=deadline_ms)


def parallel_random_search(trials: int, seed: int, batch_seconds: float = 30.0) -> Search:
    """Return a random search in which all trials run at the same time and without failures.

    Args:
        trials: the number of trials.
        batch_seconds: the average duration of a batch.
    """
    search = _search("random", _config("random", (0, 0), 1, False), seed, 0, batch_seconds)
    method = search.message.plan.method
    assert isinstance(method, RandomPlan)
    plan = replace(
        search.message.plan, method=replace(method, max_trials=trials, max_concurrent_trials=0)
    )
    return replace(search, message=replace(search.message, plan=plan))


def _data_retention(seed: int) -> DataRetention:
    """Return the retention of a search's logs and metrics, which ends at once for half of all.

    The others keep logs for longer than the clock of a host may be ahead, because such a host
    deletes early.
    """
    is_short = hash_fraction(seed, "data_retention") < 0.5
    return DataRetention(0, 0) if is_short else DataRetention(3, 7)


def _search(
    family: str, config: ExperimentConfig, seed: int, failures_max: int, batch_seconds: float
) -> Search:
    """Return the search of a configuration, with learning curves that depend on the seed."""
    message = simulated_submission(config)
    restarts_hangs = hash_fraction(seed, "hangs") < HANG_RESTARTS_SHARE
    plan = replace(message.plan, seed=seed)
    message = replace(
        message,
        owner="user",
        config=config.to_json().decode(),
        code_sha256="0" * 64,
        plan=plan,
        settings=replace(
            message.settings,
            max_restarts=failures_max + (HANGS_MAX if restarts_hangs else 0),
            restarts_hangs=restarts_hangs,
            low_use="notify" if seed % LOW_USE_ENDS else "end",
        ),
        retention=Retention(1, 1, 1),
        data_retention=_data_retention(seed),
        listing_has_failures=True,
        has_values_row=True,
    )
    lengths, unit_batches = time_lengths(config), 1
    if lengths.counts_epochs:
        # The size of an epoch, which the trials find in their data.
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
    """The submitted searches, as the source of their trials' trainings.

    Attributes:
        by_name: the searches by the name of the experiment.
    """

    def __init__(self, checkpoints: CheckpointStore) -> None:
        self.by_name: dict[str, Search] = {}
        self._checkpoints = checkpoints

    def training_for(self, spec: Mapping[str, Any]) -> Training:
        """Return the training for a process's specification.

        Raises KeyError if the search was not submitted.
        """
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
        """Return the batches in the checkpoint that the trial started from; 0 without one."""
        reference = spec["inherited"]
        return self._checkpoints.batches_in(reference) if reference else 0


def failing_batches(search: Search, trial_seed: int) -> tuple[int, ...]:
    """Return the batches at which a trial's code fails, each once, in the order of restarts.

    Failures after the training are not included. The result depends on the arguments only.
    """
    count = max(0, _failures(search, trial_seed) - ends_badly(trial_seed))
    last_batch = 30
    return tuple(int(hash_fraction(trial_seed, "failure", n) * last_batch) for n in range(count))


def ends_badly(trial_seed: int) -> bool:
    """Return whether the last failure of a trial's code occurs after the training.

    The result has no effect on a trial without failures. It is True for the share BAD_ENDS of all
    seeds.
    """
    return hash_fraction(trial_seed, "end") < BAD_ENDS


def _period(spec: Mapping[str, Any], name: str) -> int:
    """Return the period `name` of a specification in batches; 0 for none."""
    batches: int = spec[f"{name}_batches"]
    epochs: int = spec.get(f"{name}_epochs", 0)
    return batches or epochs * EPOCH_BATCHES


def _failures(search: Search, trial_seed: int) -> int:
    """Return the number of failures of a trial's code, from 0 to `failures_max`."""
    return int(hash_fraction(trial_seed, "failures") * (search.failures_max + 1))


@lru_cache(maxsize=256)
def _config(
    family: str,
    periods: tuple[int, int],
    slots: float,
    on_several_nodes: bool,
    in_epochs: bool = False,
) -> ExperimentConfig:
    """Return a checked configuration of a search method. Equal arguments return the cached one.

    Args:
        family: a key of SEARCHES.
        periods: the batches between validations and between checkpoints; 0 for none.
        slots: the slots of a trial, or the share of a slot.
        on_several_nodes: make the entrypoint a command, which may run on several machines.
        in_epochs: convert lengths and the validation period to epochs.
    """
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
        # A trial class runs on a single machine. Only a command may run on several machines.
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
