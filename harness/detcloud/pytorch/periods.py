"""Lengths of training, in batches or epochs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from detcloud.core import SearcherOperation
from detcloud.pytorch.loaders import ENDLESS_EPOCH
from detcloud.pytorch.workloads import Interval, Multiples
from detcloud.shared.errors import DetcloudError, InvalidType


@dataclass(frozen=True)
class Batch:
    """`value` batches; of a period, every so many, or after each of the batches in a list."""

    value: int | Collection[int]


@dataclass(frozen=True)
class Epoch:
    """`value` passes over the training data; of a period, as for Batch."""

    value: int | Collection[int]


Period = Batch | Epoch


def length_batches(period: Period, epoch_length: int) -> int:
    """The number of batches in a length; `epoch_length` is that of one epoch.

    Raises InvalidType for what is neither a Batch nor an Epoch of one number, and DetcloudError for
    a number below 1.
    """
    interval = period_batches(period, epoch_length)
    if not isinstance(interval, Multiples):
        raise InvalidType(f"{period!r} is not a training length: expected one number")
    return interval.batches


def period_batches(period: Period, epoch_length: int) -> Interval:
    """The batches at which a period ends: the multiples of a number, or those of a list.

    Raises DetcloudError as `length_batches` does.
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
    """The number of batches in an operation; `epoch_length` is that of one epoch.

    Raises DetcloudError as `configured_batches` does.
    """
    if not operation.counts_epochs:
        return operation.length
    return configured_batches(operation.length, epoch_length)


def configured_batches(epochs: int, epoch_length: int) -> int:
    """The number of batches in so many epochs of the configuration.

    Raises DetcloudError where the data loader does not know the length of an epoch.
    """
    if epochs and epoch_length >= ENDLESS_EPOCH:
        raise DetcloudError(
            "the configuration counts in epochs, and the training data loader has no length: set"
            " records_per_epoch in the configuration, or give its lengths in batches"
        )
    return epochs * epoch_length
