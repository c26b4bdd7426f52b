"""Lengths of training: an amount in the unit the configuration counts in.

A step is a unit beside batches, records and epochs; a length becomes batches only where a trial is
told what to do.
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
    """The batches or records in a unit; 0 if the configuration does not say."""

    batches_per_step: int = 0
    records_per_epoch: int = 0

    def batches(self, length: Length, hparams: Mapping[str, object]) -> int:
        """Convert a length to batches, rounded down; to at least 1 for records and epochs above 0.

        Raises:
            ValueError: records or epochs, and global_batch_size is no integer of at least 1;
                without one a batch is one record.
        """
        if not length.count:
            return 0
        _check_batch_size(length.unit, hparams)
        return self.lengths(length.unit).batches(length.count, hparams)

    def units(self, unit: Unit, batches: int, hparams: Mapping[str, object]) -> float:
        """Convert batches to a unit; ValueError as in `batches`."""
        _check_batch_size(unit, hparams)
        return self.lengths(unit).units(batches, hparams)

    def lengths(self, unit: Unit) -> Lengths:
        """Return how a unit is counted in batches."""
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
"""A length after which something is due, 0 = never."""
