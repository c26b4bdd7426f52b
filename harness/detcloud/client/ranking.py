"""Ranking of checkpoints by the searcher's metric or another validation metric."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from detcloud.shared.errors import DetcloudError
from detcloud.shared.json_values import to_float

if TYPE_CHECKING:
    from detcloud.client.checkpoint import CheckpointHandle
    from detcloud.client.trial import TrialHandle

Ranked = TypeVar("Ranked", bound="CheckpointHandle")


class RankedExperiment(Protocol):
    """The parts of an experiment that the ranking of checkpoints needs."""

    @property
    def metric(self) -> str: ...

    @property
    def smaller_is_better(self) -> bool: ...

    def trials(self) -> Iterator[TrialHandle]: ...


def rank_checkpoints(
    experiment: RankedExperiment,
    checkpoints: list[Ranked],
    sort_by: str | None,
    smaller_is_better: bool | None,
    *,
    stored_only: bool = True,
) -> list[Ranked]:
    """Return the checkpoints that have a finite value of the metric, the best first.

    Checkpoints with equal values are in the order of storing. The checkpoints contain the values of
    the searcher's metric. For another metric, read the experiment's trials and the validation
    reports of the checkpoints' trials from the cluster.

    Args:
        experiment: the experiment of the checkpoints.
        checkpoints: the checkpoints in any order.
        sort_by: the name of a validation metric; None for the searcher's metric.
        smaller_is_better: None for the searcher's setting.
        stored_only: leave out checkpoints that are not COMPLETED: damaged, deleted or in part.

    Raises:
        DetcloudError: `sort_by` is not the searcher's metric, and `smaller_is_better` is None.
    """
    is_searcher_metric = sort_by is None or sort_by == experiment.metric
    if not is_searcher_metric and smaller_is_better is None:
        raise DetcloudError(
            f"it is not known whether a smaller {sort_by} is better; set --smaller-is-better true "
            "or false"
        )
    smaller = experiment.smaller_is_better if smaller_is_better is None else smaller_is_better
    stored = [one for one in checkpoints if one.state == "COMPLETED" or not stored_only]
    values = (
        _searcher_metric_values(stored)
        if is_searcher_metric
        else _validation_values(experiment, stored, str(sort_by))
    )
    known = [checkpoint for checkpoint in stored if checkpoint.uuid in values]
    sign = 1 if smaller else -1
    return sorted(known, key=lambda one: (sign * values[one.uuid], one.created_ms))


def _searcher_metric_values(checkpoints: Sequence[CheckpointHandle]) -> dict[str, float]:
    return {
        checkpoint.uuid: checkpoint.metric
        for checkpoint in checkpoints
        if checkpoint.metric is not None
    }


def _validation_values(
    experiment: RankedExperiment, checkpoints: Sequence[CheckpointHandle], name: str
) -> dict[str, float]:
    """Read validation reports from the cluster. Return the checkpoints' values by UUID.

    The value is the metric `name` of the trial's validation after the same number of batches. A
    checkpoint without a finite value is left out.
    """
    trial_ids = {checkpoint.trial_id for checkpoint in checkpoints}
    measured = {
        (trial.id, report["steps_completed"]): report["metrics"].get(name)
        for trial in experiment.trials()
        if trial.id in trial_ids
        for report in trial.metrics("validation")
    }
    values = {
        checkpoint.uuid: measured.get((checkpoint.trial_id, checkpoint.steps_completed))
        for checkpoint in checkpoints
    }
    return {
        uuid: value
        for uuid, value in values.items()
        if isinstance(value, int | float) and math.isfinite(to_float(value))
    }
