"""The curves of the searcher metric of experiments' best trials, for the rows of a list."""

from collections.abc import Sequence
from typing import Final

from control_plane.actors import addresses
from control_plane.actors.experiment.state import ExperimentState
from control_plane.actors.trial.state import TrialState
from control_plane.metrics.lttb import downsample
from control_plane.queries.answer import Answer
from control_plane.queries.metric_series import MetricSeries
from control_plane.queries.metric_series_cache import MetricSeriesCache
from control_plane.queries.void_reports import run_cuts
from control_plane.services import Services

EXPERIMENTS_MAX: Final = 100
"""The most experiments of a request."""
POINTS_MAX: Final = 100
"""The most points of a curve."""
_GROUP = "validation"


class BestCurve(Answer):
    """The validations of an experiment's best trial: the searcher metric by steps."""

    experiment_id: int
    trial_id: int
    points: list[tuple[int, float]]


class BestCurves(Answer):
    """The curves of experiments, in the order of the request."""

    items: list[BestCurve]


def read_best_curves(services: Services, experiment_ids: Sequence[int], points: int) -> BestCurves:
    """Return the curves of experiments' best trials. Experiments without a best trial are left out.

    Each trial's series is read and cached.

    Args:
        services: the services that read the trials and metrics.
        experiment_ids: at most EXPERIMENTS_MAX experiments.
        points: the most points of each curve; longer curves are downsampled.

    Raises:
        OSError: the object store does not answer.
        ValueError: a newer release has encoded a row of metrics.
    """
    names = [addresses.experiment(number) for number in dict.fromkeys(experiment_ids)]
    bests = [
        state
        for state in services.engine.read_states(names)
        if isinstance(state, ExperimentState) and state.best_trial is not None
    ]
    trials = services.experiments.read_trials(
        state.best_trial for state in bests if state.best_trial is not None
    )
    return BestCurves(
        items=[
            BestCurve(
                experiment_id=state.experiment_id,
                trial_id=trial.trial_id,
                points=_read_points(services, trial, state.metric, points),
            )
            for state, trial in zip(bests, trials, strict=True)
            if trial is not None
        ]
    )


def _read_points(
    services: Services, trial: TrialState, metric: str, points: int
) -> list[tuple[int, float]]:
    """Return the steps and values of a trial's metric, downsampled. [] without the metric."""

    def draw(series: MetricSeries) -> list[tuple[int, float]]:
        summary = series.summaries().get(metric)
        if summary is None:
            return []
        chosen = downsample(summary.steps, summary.values, points)
        return [(summary.steps[n], summary.values[n]) for n in chosen]

    return services.cache_of(MetricSeriesCache).draw_chart(
        services.table, services.objects, trial.trial_id, _GROUP, run_cuts(trial), draw
    )
