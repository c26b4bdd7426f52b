"""The order of workloads. The next workload is a pure function of the schedule and the position.

The orders are those of Determined 0.12 (steps) and 0.19 (lengths).
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class EraRules:
    """The rules that depend on the era of the configuration.

    The searcher gets the metric of a validation only after the checkpoint, so that every known
    metric can be restored.
    """

    cuts_at_periods: bool
    """Whether a training workload ends at the end of a period. Otherwise periods count whole steps
    and are checked at the end of a step.
    """
    validates_first: bool
    """Whether the validation at the end of an operation comes before the checkpoint."""
    missing_metric_ends_search: bool
    """Whether a missing metric of the searcher ends the experiment at the end of an operation, and
    is ignored elsewhere. Otherwise a missing metric is always an error of the trial.
    """


ERAS = {
    "steps": EraRules(cuts_at_periods=False, validates_first=True, missing_metric_ends_search=True),
    "length": EraRules(
        cuts_at_periods=True, validates_first=False, missing_metric_ends_search=False
    ),
}


@dataclass(frozen=True)
class Multiples:
    """A period that ends at each multiple of `batches`, counted from the trial's start."""

    batches: int


Interval = int | Multiples | tuple[int, ...]
"""A period: a number of batches since the last time (0: never), multiples of a number of batches,
or a sorted tuple of batch numbers.
"""


@dataclass(frozen=True)
class Schedule:
    """The periods of a trial's workloads, in batches."""

    scheduling_unit: Interval
    """The length of a training workload."""
    validation_period: Interval
    """The batches between validations."""
    checkpoint_period: Interval
    """The batches between checkpoints."""
    policy: str
    """`best`, `all` or `none`: which validations are followed by a checkpoint."""
    smaller_is_better: bool
    """Whether smaller values of the searcher's metric are better."""
    rules: EraRules = ERAS["length"]


@dataclass(frozen=True)
class Position:
    """The progress of a trial. Numbers are batches since the trial's start."""

    steps: int = 0
    """The trained batches."""
    workload_start: int = 0
    """The start of the current workload. Below `steps` if a request to stop with a deadline cut the
    workload, which continues later.
    """
    last_validation: int = 0
    """The last validation; 0 before the first."""
    last_checkpoint: int = 0
    """The last checkpoint that the schedule asked for. With this value, periods count as if nothing
    had been interrupted.
    """
    best: float | None = None
    """The best metric of the trial's validations. None without a validation."""
    metric: float | None = None
    """The metric of the validation at `last_validation`. None if another process reported it."""
    is_wanted: bool = False
    """Whether the policy requires a checkpoint of the last validation."""
    saved: int = 0
    """The last checkpoint that exists."""

    @property
    def is_saved(self) -> bool:
        """Whether a checkpoint of the trained batches exists."""
        return self.saved == self.steps

    def after_training(self, steps: int, end: int) -> Position:
        """Return the position after training to `steps`, in a workload that ends at `end`.

        If `steps` is less than `end`, the workload is cut and continues later.
        """
        start = steps if steps == end else self.workload_start
        return replace(self, steps=steps, workload_start=start)

    def after_validation(
        self, schedule: Schedule, metric: float, wants_checkpoint: bool
    ) -> Position:
        """Return the position after a validation at this position's `steps`.

        `metric` is the searcher's metric; `wants_checkpoint` becomes the position's `is_wanted`.
        `metric` replaces `best` if better by the schedule; a NaN never becomes the best metric.
        """
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
        """Return the position after a checkpoint that `next_workload` asked for."""
        return replace(self, last_checkpoint=self.steps, is_wanted=False)

    def after_restart(self, schedule: Schedule, *validated_steps: int | None) -> Position:
        """Return the position after a restart from the checkpoint of `steps`.

        A checkpoint of `steps` exists from then on. `validated_steps` are batches with validations
        that the cluster knows. A validation at `steps` that is not in this position followed the
        checkpoint. Periods then count this validation, but its metric is None, and the policy `all`
        wants a checkpoint.
        """
        position = replace(self, saved=self.steps)
        if self.steps not in validated_steps or self.last_validation == self.steps:
            return position
        is_wanted = schedule.policy == "all"
        return replace(position, last_validation=self.steps, metric=None, is_wanted=is_wanted)


@dataclass(frozen=True)
class Train:
    """The workload of training up to batch `end`."""

    end: int


@dataclass(frozen=True)
class Validate:
    """The workload of validating at the present batch."""


@dataclass(frozen=True)
class Checkpoint:
    """The workload of storing a checkpoint of the present batch, unless it exists already."""


@dataclass(frozen=True)
class Complete:
    """The end of the operation, with this metric."""

    metric: float


Workload = Train | Validate | Checkpoint | Complete


def next_workload(schedule: Schedule, position: Position, length: int) -> Workload:
    """Return the workload to run at `position`, in an operation that ends at batch `length`.

    Before `length`: first finish a workload that a request to stop with a deadline cut. Otherwise
    validate if that is due, then store a checkpoint if that is due or wanted, then train. At
    `length`: validate and store a checkpoint in the order of the era, unless done, and then
    complete the operation.
    """
    if position.steps >= length:
        return _workload_at_end(schedule.rules, position)
    # Finish a workload that a deadline cut before anything else.
    if position.steps == position.workload_start:
        if _is_due(schedule.validation_period, position.steps, position.last_validation):
            return Validate()
        if position.is_wanted or _is_due(
            schedule.checkpoint_period, position.steps, position.last_checkpoint
        ):
            return Checkpoint()
    return Train(_workload_end(schedule, position, length))


def is_measured(position: Position, length: int) -> bool:
    """Return whether the operation has only to be completed: its length and metric are reached.

    Such an operation is completed before the trial stops.
    """
    return position.steps >= length and _current_metric(position) is not None


def policy_wants_checkpoint(
    schedule: Schedule, metric: float, *bests: float | None, repeats: bool = False
) -> bool:
    """Return whether the policy requires a checkpoint after a validation with this metric.

    With `best`, the metric must be strictly better than all `bests`; None counts as worse. NaN is
    never better. If `repeats` is set, the validation repeats an earlier one after a failure, and
    equality is enough.
    """
    if schedule.policy != "best":
        return schedule.policy == "all"
    return metric == metric and all(
        best is None or is_better(schedule, metric, best) or (repeats and metric == best)
        for best in bests
    )


def is_better(schedule: Schedule, metric: float, other: float) -> bool:
    """Return whether `metric` is strictly better than `other`. False for NaN."""
    return metric < other if schedule.smaller_is_better else metric > other


def _workload_at_end(rules: EraRules, position: Position) -> Workload:
    """Return the next workload at the end of an operation.

    A validation and a checkpoint come in the order of the era, and then the completion.
    """
    metric = _current_metric(position)
    is_checkpointed = position.last_checkpoint == position.steps
    if metric is None and (rules.validates_first or is_checkpointed):
        return Validate()
    if not is_checkpointed or metric is None:
        return Checkpoint()
    return Complete(metric)


def _current_metric(position: Position) -> float | None:
    """Return the metric of the validation at the present batch. Return None without a metric."""
    return position.metric if position.last_validation == position.steps else None


def _is_due(period: Interval, steps: int, last: int) -> bool:
    """Return whether a period since batch `last` has ended at batch `steps`."""
    due = _next_due(period, last)
    return due is not None and steps >= due


def _next_due(period: Interval, last: int) -> int | None:
    """Return the first end of a period after batch `last`, or None for never."""
    if isinstance(period, tuple):
        return next((batch for batch in period if batch > last), None)
    if isinstance(period, Multiples):
        return (last // period.batches + 1) * period.batches
    return last + period if period else None


def _workload_end(schedule: Schedule, position: Position, length: int) -> int:
    """Return the batch at which the present training workload ends, at least `steps` + 1."""
    ends = [length, _next_due(schedule.scheduling_unit, position.workload_start)]
    if schedule.rules.cuts_at_periods:
        ends.append(_next_due(schedule.validation_period, position.last_validation))
        ends.append(_next_due(schedule.checkpoint_period, position.last_checkpoint))
    return max(position.steps + 1, min(end for end in ends if end is not None))
