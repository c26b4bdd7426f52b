"""How far the trials of a search have come that are compared at rungs, or in rounds."""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from control_plane.searchers.blob_store import BlobStore
from control_plane.searchers.halving.rungs import signed_metric


class Outcome(StrEnum):
    """The outcome of a trial in a rung: it trains to its length, has a result and may still go
    on, went on, was left behind, finished the last rung, or ended early.
    """

    TRAINING = "training"
    WAITING = "waiting"
    PROMOTED = "promoted"
    STOPPED = "stopped"
    FINISHED = "finished"
    EXITED = "exited"

    def for_trial(self, *, is_open: bool) -> "Outcome":
        """Return this outcome for an open trial, and for an ended one the outcome it turns into."""
        if is_open:
            return self
        return {Outcome.TRAINING: Outcome.EXITED, Outcome.WAITING: Outcome.STOPPED}.get(self, self)


class SearchedTrial(NamedTuple):
    """A trial as its experiment knows it: its best metric, and whether it has not ended."""

    metric: float | None
    is_open: bool


class RungTrial(NamedTuple):
    """A trial in a rung by its number; `metric` is None where it has no result there."""

    trial: int
    metric: float | None
    outcome: Outcome


def rank_key(one: RungTrial, smaller_is_better: bool) -> tuple[bool, float]:
    """Return what sorts trials by their metrics, the best first and those without one last."""
    return one.metric is None, signed_metric(one.metric or 0.0, smaller_is_better)


class RungProgress(NamedTuple):
    """A rung: its length, how many trials had which outcome, the best metric, None where it is not
    known, and some of its trials, the best first and then those without a metric.
    """

    length: int
    outcomes: Mapping[Outcome, int]
    best_metric: float | None
    trials: tuple[RungTrial, ...]


class BracketProgress(NamedTuple):
    """Trials that are compared with each other; the rungs go up."""

    rungs: tuple[RungProgress, ...]


ReadBrackets = Callable[
    [Any, Any, BlobStore, Sequence[SearchedTrial], int], Sequence[BracketProgress]
]
"""Reads the brackets of a search from its plan, its state and its blobs; of each rung at most so
many trials.
"""
