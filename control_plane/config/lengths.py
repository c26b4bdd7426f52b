"""Lengths of training in the configuration's unit: steps, batches, records or epochs.

Lengths are converted to batches only for the instructions to a trial.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from control_plane.actors.lengths import Lengths, Unit
from control_plane.field_types import (
    BATCH_SIZE,
    Length,
    PlainForm,
    is_count,
    parse_length_map,
    render_length,
)
from control_plane.findings import value_text


@dataclass(frozen=True, slots=True)
class Scale:
    """The numbers by which lengths are converted to batches."""

    batches_per_step: int = 0
    """The number of batches in a step. 0 in the length era."""
    records_per_epoch: int = 0
    """The number of records in an epoch. 0: only the trial knows the length of an epoch."""

    def batches(self, length: Length, hparams: Mapping[str, object]) -> int:
        """Return the number of batches of a length, rounded down.

        A length of 0 has 0 batches. Other lengths in records or epochs have at least 1.

        Args:
            hparams: the trial's hyperparameters. Without `global_batch_size`, a batch is a record.

        Raises:
            ValueError: the length is in records or epochs above 0, and `global_batch_size` is set,
                but not to an integer of at least 1. Also raised for epochs above 0 if
                `records_per_epoch` is 0.
        """
        if not length.count:
            return 0
        _check_batch_size(length.unit, hparams)
        return self.lengths(length.unit).batches(length.count, hparams)

    def units(self, unit: Unit, batches: int, hparams: Mapping[str, object]) -> float:
        """Return a number of batches converted to `unit`, not rounded.

        Args:
            hparams: as in `batches`.

        Raises:
            ValueError: as in `batches`, even for 0 batches.
        """
        _check_batch_size(unit, hparams)
        return self.lengths(unit).units(batches, hparams)

    def lengths(self, unit: Unit) -> Lengths:
        """Return the converter of lengths in `unit` to batches, and of batches to `unit`.

        Never raises. The conversions of the result raise ValueError if `unit` is epochs and
        `records_per_epoch` is 0.
        """
        return Lengths(unit, self.batches_per_step, self.records_per_epoch)


def _check_batch_size(unit: Unit, hparams: Mapping[str, object]) -> None:
    size = hparams.get(BATCH_SIZE, 1)
    if unit in ("records", "epochs") and not is_count(size, 1):
        raise ValueError(
            "the hyperparameter global_batch_size must be an integer of at least 1 to convert "
            f"records or epochs to batches, not {value_text(size)}"
        )


def _parse_period(value: object) -> Length:
    return parse_length_map(value, least=0)


Period = Annotated[Length, PlainForm(_parse_period, render_length)]
"""A length of training after which a validation or a checkpoint is due. 0: never."""
