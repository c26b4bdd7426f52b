"""Ranking of checkpoints, by the searcher's metric or by any other that was validated."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from detcloud.shared.errors import DetcloudError

if TYPE_CHECKING:
    from detcloud.client.checkpoint import Checkpoint
    from detcloud.client.experiment import Experiment


def rank_checkpoints(
    experiment: Experiment,
    checkpoints: list[Checkpoint],
    sort_by: str | None,
    smaller_is_better: bool | None,
) -> list[Checkpoint]:
    """Rank the stored checkpoints that have a number, the best first; of equals the earlier.

    Raises:
        DetcloudError: `sort_by` is not the searcher's, and which way is better is not given.
    """
    is_searcher_metric = sort_by is None or sort_by == experiment.metric
    if not is_searcher_metric and smaller_is_better is None:
        raise DetcloudError(
            f"it is not known whether a smaller {sort_by} is better; set --smaller-is-better true "
            "or false"
        )
    smaller = experiment.smaller_is_better if smaller_is_better is None else smaller_is_better
    stored = [checkpoint for checkpoint in checkpoints if checkpoint.state == "COMPLETED"]
    values = (
        _searcher_metric_values(stored)
        if is_searcher_metric
        else _validation_values(experiment, stored, str(sort_by))
    )
    known = [checkpoint for checkpoint in stored if checkpoint.uuid in values]
    sign = 1 if smaller else -1
    return sorted(known, key=lambda one: (sign * values[one.uuid], one.created_ms))


def _searcher_metric_values(checkpoints: list[Checkpoint]) -> dict[str, float]:
    return {
        checkpoint.uuid: checkpoint.metric
        for checkpoint in checkpoints
        if checkpoint.metric is not None
    }


def _validation_values(
    experiment: Experiment, checkpoints: list[Checkpoint], name: str
) -> dict[str, float]:
    """The metric validated at each checkpoint's steps, by UUID."""
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
        if isinstance(value, int | float) and math.isfinite(value)
    }
