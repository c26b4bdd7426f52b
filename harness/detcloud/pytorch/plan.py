"""The plan of one training: what `fit` was asked for, resolved with the configuration."""

from __future__ import annotations

from dataclasses import dataclass

from detcloud.core import CheckpointReference
from detcloud.pytorch.workloads import Schedule


@dataclass(frozen=True)
class Plan:
    """The arguments of `fit`, resolved; `max_length` is in batches, for runs without a searcher.
    An epoch has `epoch_length` batches.

    `metric` names the searcher's metric, None for a run without a searcher. A `warm_start` takes
    the weights of `checkpoint` and nothing else.
    """

    schedule: Schedule
    max_length: int
    epoch_length: int
    metric: str | None
    checkpoint: CheckpointReference | str | None
    warm_start: bool
    initial_validation: bool
    test_mode: bool
