"""The plan of a training: the arguments of `fit` combined with the configuration."""

from __future__ import annotations

from dataclasses import dataclass

from detcloud.core import CheckpointReference
from detcloud.pytorch.workloads import Schedule


@dataclass(frozen=True)
class Plan:
    """The resolved arguments of `fit`."""

    schedule: Schedule
    """The periods of reports, validations and checkpoints."""
    max_length: int
    """The length in batches, for runs without a searcher. ENDLESS if not given."""
    epoch_length: int
    """The number of batches in an epoch."""
    metric: str | None
    """The name of the searcher's metric, or None without a searcher."""
    checkpoint: CheckpointReference | str | None
    """The checkpoint to start from, or None."""
    warm_start: bool
    """Whether only the weights of `checkpoint` are loaded."""
    first_batch: int
    """The batch at which training resumes, or 0."""
    initial_validation: bool
    """Whether to validate before the first batch."""
    test_mode: bool
    """Whether to train and validate a single batch."""
