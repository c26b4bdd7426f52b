"""The choice of the checkpoints of an experiment that are deleted.

Three rules keep checkpoints: the best of the experiment, the best of each trial and the latest of
each trial. All others are deleted, as in Determined 0.12. The metric of a checkpoint is that of the
validation at its trial and step. A checkpoint without a metric is only kept as a latest checkpoint.
Of equal checkpoints, the older is better; see `CheckpointCandidate.age`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby

from control_plane.actors.records import Retention


@dataclass(frozen=True, slots=True)
class CheckpointCandidate:
    """A complete checkpoint that the collector may keep or delete."""

    uuid: str
    trial_id: int
    steps: int
    """The number of training steps completed at the checkpoint."""
    metric: float | None
    """The searcher metric at this step; None if the step has no finite metric."""
    created_ms: int
    """The time at which the checkpoint was recorded, in epoch ms."""
    size_bytes: int = 0
    """The size of the remaining files."""
    files: int = 0
    """The number of remaining files."""

    @property
    def age(self) -> tuple[int, int, int, str]:
        """A sort key for the order of creation, oldest first, without ties.

        Checkpoints with equal times are sorted by trial id, then by steps, then by UUID.
        """
        return self.created_ms, self.trial_id, self.steps, self.uuid


def unwanted_checkpoints(
    candidates: Iterable[CheckpointCandidate],
    retention: Retention,
    smaller_is_better: bool,
    is_held: Callable[[CheckpointCandidate], bool],
) -> list[CheckpointCandidate]:
    """Return the checkpoints that no rule keeps and that are not held, in the order of trial ids.

    Args:
        candidates: all complete checkpoints of an experiment.
        retention: the number of checkpoints that each rule keeps.
        smaller_is_better: whether a smaller metric is better.
        is_held: returns whether a checkpoint must stay for another reason, for example because an
            experiment started from it. Called only for checkpoints that no rule keeps.
    """
    everything = list(candidates)
    sign = 1 if smaller_is_better else -1
    best = _best_uuids(everything, retention.save_experiment_best, sign)
    found: list[CheckpointCandidate] = []
    everything.sort(key=lambda one: one.trial_id)
    for _, group in groupby(everything, key=lambda one: one.trial_id):
        of_trial = list(group)
        kept = _best_uuids(of_trial, retention.save_trial_best, sign)
        kept |= _latest_uuids(of_trial, retention.save_trial_latest)
        others = (one for one in of_trial if one.uuid not in best and one.uuid not in kept)
        found += (one for one in others if not is_held(one))
    return found


def _best_uuids(candidates: list[CheckpointCandidate], count: int, sign: int) -> set[str]:
    """Return the UUIDs of the `count` checkpoints with the smallest `sign` * metric.

    Of equal checkpoints, the older comes first. Checkpoints without a metric are excluded.
    """
    ranked = [(sign * one.metric, one.age) for one in candidates if one.metric is not None]
    return {age[-1] for _, age in sorted(ranked)[:count]}


def _latest_uuids(candidates: list[CheckpointCandidate], count: int) -> set[str]:
    """Return the UUIDs of the `count` checkpoints with the most steps.

    Of checkpoints with equal steps, the later created comes first.
    """
    ranked = sorted(candidates, key=lambda one: (one.steps, one.age), reverse=True)
    return {one.uuid for one in ranked[:count]}
