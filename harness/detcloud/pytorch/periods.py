"""Lengths of training, in batches or epochs."""

from __future__ import annotations

from dataclasses import dataclass

from detcloud.shared.errors import DetcloudError


@dataclass(frozen=True)
class Batch:
    """`value` batches."""

    value: int


@dataclass(frozen=True)
class Epoch:
    """`value` passes over the training data."""

    value: int


Period = Batch | Epoch


def period_batches(period: Period, epoch_length: int) -> int:
    """The number of batches in a period; `epoch_length` is that of one epoch.

    Raises DetcloudError for what is neither a Batch nor an Epoch, or is below 1.
    """
    if not isinstance(period, Batch | Epoch):
        raise DetcloudError(f"{period!r} is no length of training: use Batch(n) or Epoch(n)")
    if isinstance(period.value, bool) or not isinstance(period.value, int) or period.value < 1:
        raise DetcloudError(f"{period!r} is no length of training: an int of at least 1 is needed")
    return period.value * (epoch_length if isinstance(period, Epoch) else 1)
