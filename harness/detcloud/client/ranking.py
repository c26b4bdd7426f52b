"""Which checkpoints are the best, by the searcher's metric or by any other that was validated."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from detcloud import DetcloudError

if TYPE_CHECKING:
    from detcloud.client.checkpoint import Checkpoint
    from detcloud.client.experiment import Experiment


def ranked(
    experiment: Experiment,
    checkpoints: list[Checkpoint],
    sort_by: str | None,
    smaller_is_better: bool | None,
) -> list[Checkpoint]:
    """The stored ones with a number, the best first; of equals the earlier.

    Raises:
        DetcloudError: a metric of its own without saying which way is better.
    """
    own = sort_by is None or sort_by == experiment.metric
    if not own and smaller_is_better is None:
        raise DetcloudError(
            f"whether a smaller {sort_by} is better is not known; say --smaller-is-better true "
            "or false"
        )
    smaller = experiment.smaller_is_better if smaller_is_better is None else smaller_is_better
    stored = [checkpoint for checkpoint in checkpoints if checkpoint.state == "COMPLETED"]
    values = _own_values(stored) if own else _validated(experiment, stored, str(sort_by))
    known = [checkpoint for checkpoint in stored if checkpoint.uuid in values]
    sign = 1 if smaller else -1
    return sorted(known, key=lambda found: (sign * values[found.uuid], found.created_ms))


def _own_values(checkpoints: list[Checkpoint]) -> dict[str, float]:
    return {
        checkpoint.uuid: checkpoint.metric
        for checkpoint in checkpoints
        if checkpoint.metric is not None
    }


def _validated(
    experiment: Experiment, checkpoints: list[Checkpoint], name: str
) -> dict[str, float]:
    """By UUID, the metric validated at the checkpoint's steps."""
    wanted = {checkpoint.trial_id for checkpoint in checkpoints}
    measured = {
        (trial.id, report["steps_completed"]): report["metrics"].get(name)
        for trial in experiment.trials()
        if trial.id in wanted
        for report in trial.metrics("validation")
    }
    found = {
        checkpoint.uuid: measured.get((checkpoint.trial_id, checkpoint.steps_completed))
        for checkpoint in checkpoints
    }
    return {
        uuid: value
        for uuid, value in found.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }
