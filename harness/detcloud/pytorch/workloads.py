"""Which workload comes next: a pure function of the schedule and of what was done."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Schedule:
    """Lengths in batches; a period of 0 is off. `policy` is best, all or none."""

    scheduling_unit: int
    validation_period: int
    checkpoint_period: int
    policy: str
    smaller_is_better: bool


@dataclass(frozen=True)
class Position:
    """What was done, in batches since the trial's start; `best` is this trial's best metric.

    `workload_start` lies before `steps` where a deadline cut a workload: it goes on later.
    """

    steps: int = 0
    workload_start: int = 0
    last_validation: int = 0
    last_checkpoint: int = 0
    best: float | None = None

    def resumed(self, answered: int) -> Position:
        """As it stands after a restart from the checkpoint of `steps`.

        An operation's checkpoint is written before its validation; where the cluster decided on
        the validation of `answered` batches, it was done.
        """
        validated = max(self.last_validation, min(answered, self.steps))
        return replace(self, last_checkpoint=self.steps, last_validation=validated)


def workload_end(schedule: Schedule, position: Position, length: int) -> int:
    """The batch at which the current training workload ends, at least one after `steps`."""
    ends = [length, position.workload_start + schedule.scheduling_unit]
    if schedule.validation_period:
        ends.append(position.last_validation + schedule.validation_period)
    if schedule.checkpoint_period:
        ends.append(position.last_checkpoint + schedule.checkpoint_period)
    return max(position.steps + 1, min(ends))


def validation_is_due(schedule: Schedule, position: Position) -> bool:
    period = schedule.validation_period
    return period > 0 and position.steps - position.last_validation >= period


def checkpoint_is_due(schedule: Schedule, position: Position) -> bool:
    period = schedule.checkpoint_period
    return period > 0 and position.steps - position.last_checkpoint >= period


def policy_wants_checkpoint(schedule: Schedule, metric: float, *bests: float | None) -> bool:
    """Whether a validation's metric calls for a checkpoint, given the bests before it.

    `best` asks for strictly better than all of them: the first is best, ties and NaN are not.
    """
    if schedule.policy != "best":
        return schedule.policy == "all"
    return metric == metric and all(
        best is None or is_better(schedule, metric, best) for best in bests
    )


def is_better(schedule: Schedule, metric: float, other: float) -> bool:
    return metric < other if schedule.smaller_is_better else metric > other
