"""The simulation of a configuration's search: check, learning curves, run and report."""

from collections.abc import Callable
from typing import Any

from control_plane.actors.lengths import Lengths
from control_plane.config.experiment import ExperimentConfig
from control_plane.config.problems import ConfigInvalid, Problem
from control_plane.findings import path_text
from control_plane.simulation.experiment import (
    ProgressCallback,
    SimulationResult,
    SimulationStuck,
    SuggestionSource,
    simulate_experiment,
)
from control_plane.simulation.learning_curves import LearningCurves
from control_plane.simulation.submission import (
    TimeMetricUnknown,
    simulated_submission,
    time_lengths,
    validation_schedule,
)
from control_plane.simulation.synthetic_curves import SyntheticCurves


def refusal(path: str, message: str, hint: str = "") -> ConfigInvalid:
    """Return an error with a single problem: the option `path`, the message and the remedy."""
    return ConfigInvalid([Problem(path, None, None, message, hint)])


def check_simulable(config: ExperimentConfig, slots: int, missing_package: str | None) -> None:
    """Check that the search can be simulated on a cluster with `slots` slots.

    Args:
        missing_package: why the searcher cannot run on this server, or "" or None.

    Raises:
        ConfigInvalid: the search cannot be simulated. The error describes the first problem.
    """
    needed = max(1, config.job.slots_per_trial)
    if slots < needed:
        text = f"is {needed}, but the simulated cluster has {slots}: no trial could ever start"
        raise refusal("resources.slots_per_trial", text, f"use {needed} slots or more")
    if config.searcher.name == "custom":
        text = "cannot be simulated: a process outside the cluster controls a custom search"
        raise refusal("searcher.name", text, "simulate another searcher")
    if missing_package:
        raise refusal("searcher.name", missing_package)
    epochs = [path_text(loc) for loc, length in config.lengths().items() if length.unit == "epochs"]
    if epochs and not config.scale.records_per_epoch:
        text = f"is needed to simulate {epochs[0]}: otherwise only a trial knows its epochs"
        hint = "simulate with --config records_per_epoch=..."
        raise refusal("records_per_epoch", text, hint)
    if config.searcher.is_open_ended:
        text = "is missing: without it, the training code decides how long a trial trains"
        hint = "simulate with --config searcher.max_length=..."
        raise refusal("searcher.max_length", text, hint)


def simulated_lengths(config: ExperimentConfig) -> Lengths:
    """Return the unit in which learning curves measure training; see `time_lengths`.

    Raises:
        ConfigInvalid: the growth of the time metric with training is unknown.
    """
    try:
        return time_lengths(config)
    except TimeMetricUnknown as error:
        hint = "simulate with max_length, or with time_metric batches, records or epochs"
        raise refusal("searcher.time_metric", str(error), hint) from None


def synthetic_curves(config: ExperimentConfig, seed: int, unit_seconds: float) -> SyntheticCurves:
    """Return synthetic learning curves for the search's trials.

    Args:
        seed: determines the curves.
        unit_seconds: the median duration of one unit of training.

    Raises:
        ConfigInvalid: the growth of the time metric with training is unknown.
    """
    plan = config.search_plan()
    return SyntheticCurves(
        space=plan.space,
        lengths=simulated_lengths(config),
        full_length=plan.method.max_length,
        smaller_is_better=config.searcher.smaller_is_better,
        seed=seed,
        unit_seconds=unit_seconds,
    )


def simulate_search(
    config: ExperimentConfig,
    slots: int,
    curves: LearningCurves,
    suggest: SuggestionSource,
    *,
    on_progress: ProgressCallback = lambda ended: None,
    on_events: Callable[[], None] = lambda: None,
) -> SimulationResult:
    """Run the simulation of the search and return the result; see `simulate_experiment`.

    Raises:
        ConfigInvalid: the experiment waits for an event that never occurs.
        TimeMetricUnknown: see `time_lengths`. `simulated_lengths` checks this in advance.
    """
    try:
        return simulate_experiment(
            simulated_submission(config),
            slots,
            curves,
            validation_schedule=validation_schedule(config),
            suggest=suggest,
            on_progress=on_progress,
            on_events=on_events,
        )
    except SimulationStuck as error:
        raise refusal("searcher", f"cannot be simulated: {error}") from None


def simulation_report(
    config: ExperimentConfig, slots: int, outcome: SimulationResult
) -> dict[str, Any]:
    """Return the result of a simulation as JSON values, for `detcloud simulate`."""
    experiment, usage = outcome.experiment, outcome.usage
    return {
        "searcher": config.searcher.name,
        "metric": config.searcher.metric,
        "smaller_is_better": config.searcher.smaller_is_better,
        "unit": config.unit,
        "slots": slots,
        "slots_per_trial": config.job.slots_per_trial,
        "state": experiment.status.value,
        "makespan_seconds": outcome.makespan_ms / 1000,
        "trials": experiment.trials,
        "units": usage.units,
        "batches": usage.batches,
        "slot_seconds": usage.slot_ms / 1000,
        "slot_use": outcome.slot_utilization(slots),
        "best_metric": experiment.best_metric,
        "best_trial": experiment.best_trial,
        "best": [[at_ms / 1000, metric] for at_ms, metric in outcome.improvements],
    }
