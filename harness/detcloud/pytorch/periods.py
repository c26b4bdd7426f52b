"""Lengths and periods of training, in batches or epochs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from detcloud.core import SearcherOperation
from detcloud.pytorch.loaders import ENDLESS_EPOCH
from detcloud.pytorch.workloads import Interval, Multiples
from detcloud.shared.errors import DetcloudError, InvalidType


@dataclass(frozen=True)
class Batch:
    """A number of batches, or as a period the batches after which something happens."""

    value: int | Collection[int]
    """A number from 1. For a period, either its multiples, or a collection of batch numbers."""


@dataclass(frozen=True)
class Epoch:
    """A number of passes over the training data, or as a period the epochs at its end."""

    value: int | Collection[int]
    """A number from 1. For a period, either its multiples, or a collection of epoch numbers."""


Period = Batch | Epoch


def length_batches(period: Period, epoch_length: int) -> int:
    """Return a length in batches. `epoch_length` is the number of batches per epoch.

    Raises InvalidType if `period` is not a Batch or Epoch with a single number, and DetcloudError
    for a number below 1.
    """
    interval = period_batches(period, epoch_length)
    if not isinstance(interval, Multiples):
        raise InvalidType(f"{period!r} is not a training length: expected one number")
    return interval.batches


def period_batches(period: Period, epoch_length: int) -> Interval:
    """Return the batches at which a period ends: multiples, or a sorted tuple of batch numbers.

    `epoch_length` is the number of batches per epoch. Raises InvalidType if `period` is not a Batch
    or Epoch, and DetcloudError for a number below 1.
    """
    if not isinstance(period, Batch | Epoch):
        raise InvalidType(f"{period!r} is not a training length: use Batch(n) or Epoch(n)")
    value = period.value
    numbers = value if isinstance(value, Collection) and not isinstance(value, str) else [value]
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise DetcloudError(
                f"{period!r} is not a training length: expected an int of at least 1"
            )
    unit = epoch_length if isinstance(period, Epoch) else 1
    if isinstance(value, int):
        return Multiples(value * unit)
    return tuple(sorted(n * unit for n in value))


def operation_batches(operation: SearcherOperation, epoch_length: int) -> int:
    """Return the length of an operation in batches. `epoch_length` is the batches per epoch.

    Raises DetcloudError if the operation counts epochs and the epoch's length is unknown.
    """
    if not operation.counts_epochs:
        return operation.length
    return configured_batches(operation.length, epoch_length)


def configured_batches(epochs: int, epoch_length: int) -> int:
    """Convert a configured number of epochs into batches. `epoch_length` is the batches per epoch.

    Raises DetcloudError if `epochs` is not 0 and the data loader does not know the epoch's length.
    """
    if epochs and epoch_length >= ENDLESS_EPOCH:
        raise DetcloudError(
            "the configuration counts in epochs, and the training data loader has no length: set"
            " records_per_epoch in the configuration, or give its lengths in batches"
        )
    return epochs * epoch_length
