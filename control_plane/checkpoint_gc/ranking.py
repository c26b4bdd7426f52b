"""The checkpoints of an experiment that are kept: the union of three rules, the rest is deleted.

Kept are the best of the experiment, the best of each trial and the latest of each trial. The rule
is that of Determined 0.12: the metric of a checkpoint is that of the validation at its trial and
step, and one without a metric is kept as a latest one only. Of equals the one created first comes
first; see `CheckpointCandidate.age`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby

from control_plane.actors.records import Retention


@dataclass(frozen=True, slots=True)
class CheckpointCandidate:
    """A complete checkpoint. `metric` is None where its step has none, or none that is finite."""

    uuid: str
    trial_id: int
    steps: int
    metric: float | None
    created_ms: int
    size_bytes: int = 0
    files: int = 0

    @property
    def age(self) -> tuple[int, int, int, str]:
        """The total order of creation, oldest first: UUIDs alone have none."""
        return self.created_ms, self.trial_id, self.steps, self.uuid


def unwanted_checkpoints(
    candidates: Iterable[CheckpointCandidate],
    retention: Retention,
    smaller_is_better: bool,
    is_held: Callable[[CheckpointCandidate], bool],
) -> list[CheckpointCandidate]:
    """The checkpoints that may be deleted, of all complete ones of an experiment, by trial.

    `is_held` says of one that no rule keeps whether it must stay nevertheless, such as one that
    another experiment started from. It is not asked about the others.
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
    """The `count` first by signed metric; checkpoints without a metric are never among them."""
    ranked = [(sign * one.metric, one.age) for one in candidates if one.metric is not None]
    return {age[-1] for _, age in sorted(ranked)[:count]}


def _latest_uuids(candidates: list[CheckpointCandidate], count: int) -> set[str]:
    """The `count` with the most steps; of those with equally many, created last."""
    ranked = sorted(candidates, key=lambda one: (one.steps, one.age), reverse=True)
    return {one.uuid for one in ranked[:count]}
