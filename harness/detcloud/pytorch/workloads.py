"""The order of workloads: the next one is a pure function of the schedule and the position.

The orders of workloads are those of Determined 0.12 (steps) and 0.19 (lengths), restated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class EraRules:
    """The differences between the eras of configurations inside a trial.

    `cuts_at_periods`: a training workload ends where a period does; else periods, which count in
    whole steps, are checked where a step ends. `validates_first`: at an operation's end the
    validation goes before the checkpoint. Either way the searcher hears of the validation after
    both, so that it never learns a metric that cannot be restored. `missing_metric_ends_search`: a
    validation without the searcher's metric is no error, but ends the experiment where the searcher
    waits for it; else it is an error of the trial anywhere.
    """

    cuts_at_periods: bool
    validates_first: bool
    missing_metric_ends_search: bool


ERAS = {
    "steps": EraRules(cuts_at_periods=False, validates_first=True, missing_metric_ends_search=True),
    "length": EraRules(
        cuts_at_periods=True, validates_first=False, missing_metric_ends_search=False
    ),
}


@dataclass(frozen=True)
class Multiples:
    """A period that ends at each multiple of so many batches, whatever came before."""

    batches: int


Interval = int | Multiples | tuple[int, ...]
"""A period in batches since the last time, 0 for none; the multiples of a number of batches; or the
batches at which something is due, in their order.
"""


@dataclass(frozen=True)
class Schedule:
    """The periods of a trial's workloads, in batches; 0 is off. `policy` is best, all or none."""

    scheduling_unit: Interval
    validation_period: Interval
    checkpoint_period: Interval
    policy: str
    smaller_is_better: bool
    rules: EraRules = ERAS["length"]


@dataclass(frozen=True)
class Position:
    """The progress of a trial, in batches since its start; `best` is its best metric.

    `workload_start` lies before `steps` where a deadline cut a workload: it goes on later.
    `last_checkpoint` is the last one that the schedule asked for and `saved` the last one that
    exists, so that periods count as if nothing had been interrupted. `metric` is of the
    validation at `last_validation`, None where another process did it; `is_wanted` says that the
    policy asks for a checkpoint of it.
    """

    steps: int = 0
    workload_start: int = 0
    last_validation: int = 0
    last_checkpoint: int = 0
    best: float | None = None
    metric: float | None = None
    is_wanted: bool = False
    saved: int = 0

    @property
    def is_saved(self) -> bool:
        return self.saved == self.steps

    def after_training(self, steps: int, end: int) -> Position:
        """The position after training to `steps`, of a workload that ends at `end`."""
        start = steps if steps == end else self.workload_start
        return replace(self, steps=steps, workload_start=start)

    def after_validation(
        self, schedule: Schedule, metric: float, wants_checkpoint: bool
    ) -> Position:
        """The position after a validation at `steps`; a NaN is no best."""
        best = self.best
        if metric == metric and (best is None or is_better(schedule, metric, best)):
            best = metric
        return replace(
            self,
            last_validation=self.steps,
            metric=metric,
            best=best,
            is_wanted=wants_checkpoint,
        )

    def after_checkpoint(self) -> Position:
        """The position after the checkpoint that `next_workload` asked for, new or not."""
        return replace(self, last_checkpoint=self.steps, is_wanted=False)

    def after_restart(self, schedule: Schedule, *validated_steps: int | None) -> Position:
        """The position after a restart from the checkpoint of `steps`.

        `validated_steps` are batches whose validations the cluster knows: one at `steps` may have
        come after the checkpoint.
        """
        position = replace(self, saved=self.steps)
        if self.steps not in validated_steps or self.last_validation == self.steps:
            return position
        is_wanted = schedule.policy == "all"
        return replace(position, last_validation=self.steps, metric=None, is_wanted=is_wanted)


@dataclass(frozen=True)
class Train:
    """Train to batch `end`."""

    end: int


@dataclass(frozen=True)
class Validate:
    """Validate at this batch."""


@dataclass(frozen=True)
class Checkpoint:
    """The schedule asks for a checkpoint of this batch; where there is one, it is not repeated."""


@dataclass(frozen=True)
class Complete:
    """The operation is done with this metric."""

    metric: float


Workload = Train | Validate | Checkpoint | Complete


def next_workload(schedule: Schedule, position: Position, length: int) -> Workload:
    """The workload to run at `position` for an operation of `length` batches."""
    if position.steps >= length:
        return _workload_at_end(schedule.rules, position)
    # A workload that a deadline cut goes on first.
    if position.steps == position.workload_start:
        if _is_due(schedule.validation_period, position.steps, position.last_validation):
            return Validate()
        if position.is_wanted or _is_due(
            schedule.checkpoint_period, position.steps, position.last_checkpoint
        ):
            return Checkpoint()
    return Train(_workload_end(schedule, position, length))


def is_measured(position: Position, length: int) -> bool:
    """Whether the operation's metric is known, so that it is completed before any stop."""
    return position.steps >= length and _current_metric(position) is not None


def policy_wants_checkpoint(
    schedule: Schedule, metric: float, *bests: float | None, repeats: bool = False
) -> bool:
    """Whether a validation's metric calls for a checkpoint, given the bests before it.

    `best` asks for strictly better than all of them: the first is best, ties and NaN are not. A
    validation that `repeats` one from before a failure ties with its own first report.
    """
    if schedule.policy != "best":
        return schedule.policy == "all"
    return metric == metric and all(
        best is None or is_better(schedule, metric, best) or (repeats and metric == best)
        for best in bests
    )


def is_better(schedule: Schedule, metric: float, other: float) -> bool:
    return metric < other if schedule.smaller_is_better else metric > other


def _workload_at_end(rules: EraRules, position: Position) -> Workload:
    metric = _current_metric(position)
    is_checkpointed = position.last_checkpoint == position.steps
    if metric is None and (rules.validates_first or is_checkpointed):
        return Validate()
    if not is_checkpointed or metric is None:
        return Checkpoint()
    return Complete(metric)


def _current_metric(position: Position) -> float | None:
    return position.metric if position.last_validation == position.steps else None


def _is_due(period: Interval, steps: int, last: int) -> bool:
    due = _next_due(period, last)
    return due is not None and steps >= due


def _next_due(period: Interval, last: int) -> int | None:
    """The batch at which a period ends that began at batch `last`; None for never."""
    if isinstance(period, tuple):
        return next((batch for batch in period if batch > last), None)
    if isinstance(period, Multiples):
        return (last // period.batches + 1) * period.batches
    return last + period if period else None


def _workload_end(schedule: Schedule, position: Position, length: int) -> int:
    """The batch at which the current training workload ends, at least one after `steps`."""
    ends = [length, _next_due(schedule.scheduling_unit, position.workload_start)]
    if schedule.rules.cuts_at_periods:
        ends.append(_next_due(schedule.validation_period, position.last_validation))
        ends.append(_next_due(schedule.checkpoint_period, position.last_checkpoint))
    return max(position.steps + 1, min(end for end in ends if end is not None))
