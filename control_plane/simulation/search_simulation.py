"""The simulation of a configuration's search: its check, its curves, its run and its report."""

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
    """Make the error of a simulation that cannot be made, for one reason."""
    return ConfigInvalid([Problem(path, None, None, message, hint)])


def check_simulable(config: ExperimentConfig, slots: int, missing_package: str | None) -> None:
    """Check that the search can be simulated on so many slots; `missing_package` says why its
    searcher cannot be used here, if it cannot.

    Raises:
        ConfigInvalid: it cannot.
    """
    needed = max(1, config.job.slots_per_trial)
    if slots < needed:
        text = f"is {needed}, but the simulated cluster has {slots}: no trial could ever start"
        raise refusal("resources.slots_per_trial", text, f"use {needed} slots or more")
    if config.searcher.name == "custom":
        text = "cannot be simulated: what a custom search does is decided outside of the cluster"
        raise refusal("searcher.name", text, "simulate another searcher")
    if missing_package:
        raise refusal("searcher.name", missing_package)
    epochs = [path_text(loc) for loc, length in config.lengths().items() if length.unit == "epochs"]
    if epochs and not config.scale.records_per_epoch:
        text = f"is needed to simulate {epochs[0]}: without it, only a trial knows its epochs"
        hint = "simulate with --config records_per_epoch=..."
        raise refusal("records_per_epoch", text, hint)
    if config.searcher.is_open_ended:
        text = "is missing: only their code decides how long trials train"
        hint = "simulate with --config searcher.max_length=..."
        raise refusal("searcher.max_length", text, hint)


def simulated_lengths(config: ExperimentConfig) -> Lengths:
    """Return the unit in which curves measure training; ConfigInvalid where nobody knows it."""
    try:
        return time_lengths(config)
    except TimeMetricUnknown as error:
        hint = "simulate with max_length, or with time_metric batches, records or epochs"
        raise refusal("searcher.time_metric", str(error), hint) from None


def synthetic_curves(config: ExperimentConfig, seed: int, unit_seconds: float) -> SyntheticCurves:
    """Make up the curves of the search's trials; ConfigInvalid as in `simulated_lengths`."""
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
    """Simulate the search; `on_events` is called every few hundred events, and may raise.

    Raises:
        ConfigInvalid: it cannot be simulated.
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
    """Report the simulation as JSON values, as `detcloud simulate` shows it."""
    experiment, account = outcome.experiment, outcome.usage
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
        "units": account.units,
        "batches": account.batches,
        "slot_seconds": account.slot_ms / 1000,
        "slot_use": outcome.slot_utilization(slots),
        "best_metric": experiment.best_metric,
        "best_trial": experiment.best_trial,
        "best": [[at_ms / 1000, metric] for at_ms, metric in outcome.improvements],
    }
