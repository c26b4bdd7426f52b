"""The progress of a search whose trials are compared at rungs or in rounds."""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from control_plane.searchers.blob_store import BlobStore
from control_plane.searchers.halving.rungs import signed_metric


class Outcome(StrEnum):
    """The outcome of a trial in a rung."""

    TRAINING = "training"
    """The trial has no result at the rung's length yet."""
    WAITING = "waiting"
    """The trial has a result and may still be promoted."""
    PROMOTED = "promoted"
    """The trial continued to the next rung."""
    STOPPED = "stopped"
    """The trial ended after a result, without a promotion."""
    FINISHED = "finished"
    """The trial has a result in the last rung."""
    EXITED = "exited"
    """The trial ended early."""

    def for_trial(self, *, is_open: bool) -> "Outcome":
        """Return this outcome, corrected for an ended trial.

        If the trial is not open, TRAINING becomes EXITED and WAITING becomes STOPPED. All other
        outcomes stay the same.
        """
        if is_open:
            return self
        return {Outcome.TRAINING: Outcome.EXITED, Outcome.WAITING: Outcome.STOPPED}.get(self, self)


class SearchedTrial(NamedTuple):
    """A trial's data in the experiment."""

    metric: float | None
    """The trial's best metric, or None."""
    is_open: bool
    """Whether the trial has not ended."""


class RungTrial(NamedTuple):
    """A trial's entry in a rung."""

    trial: int
    """The trial's number within the search."""
    metric: float | None
    """The trial's result in the rung, or None."""
    outcome: Outcome


def rank_key(entry: RungTrial, smaller_is_better: bool) -> tuple[bool, float]:
    """Return a sort key that puts the best metric first and entries without a metric last."""
    return entry.metric is None, signed_metric(entry.metric or 0.0, smaller_is_better)


class RungProgress(NamedTuple):
    """The progress of one rung."""

    length: int
    outcomes: Mapping[Outcome, int]
    """The number of trials with each outcome."""
    best_metric: float | None
    """The best result in the rung. None if unknown, or if no trial has a result."""
    trials: tuple[RungTrial, ...]
    """Some of the rung's trials: the best first, trials without a metric last."""


class BracketProgress(NamedTuple):
    """The progress of one bracket: of trials that are compared with each other."""

    rungs: tuple[RungProgress, ...]
    """In the order of increasing lengths."""


ReadBrackets = Callable[
    [Any, Any, BlobStore, Sequence[SearchedTrial], int], Sequence[BracketProgress]
]
"""A function that reads the progress of a search's brackets.

Args: the plan, the state, the blobs, the experiment's trials by number, and the largest number of
trials to return for each rung.
"""
