"""Lengths of training in the configuration's unit, and the batches they come to."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Literal

Unit = Literal["steps", "batches", "records", "epochs"]


@dataclass(frozen=True, slots=True)
class Lengths:
    """The unit of an experiment's lengths, and its conversions. A step is `batches_per_step`
    batches; an epoch is `records_per_epoch` records.

    The divisions truncate; records and epochs come to at least one batch. Lengths that
    `counts_epochs` have no conversion here.
    """

    unit: Unit
    batches_per_step: int = 100
    records_per_epoch: int = 0

    @property
    def counts_epochs(self) -> bool:
        """Whether the lengths are epochs whose number of batches only the trial knows."""
        return self.unit == "epochs" and not self.records_per_epoch

    def batches(self, length: int, hparams: Mapping[str, object]) -> int:
        """The batches in `length` units, for a trial with these hyperparameters.

        Raises ValueError where it `counts_epochs`.
        """
        self._check_convertible()
        match self.unit:
            case "steps":
                return length * self.batches_per_step
            case "batches":
                return length
            case "records":
                return max(1, length // global_batch_size(hparams))
            case "epochs":
                return max(1, length * self.records_per_epoch // global_batch_size(hparams))

    def units(self, batches: int, hparams: Mapping[str, object]) -> float:
        """The units that `batches` batches cover, for a trial with these hyperparameters.

        Raises ValueError where it `counts_epochs`.
        """
        self._check_convertible()
        match self.unit:
            case "steps":
                return batches / self.batches_per_step
            case "batches":
                return float(batches)
            case "records":
                return float(batches * global_batch_size(hparams))
            case "epochs":
                return batches * global_batch_size(hparams) / self.records_per_epoch

    def _check_convertible(self) -> None:
        if self.counts_epochs:
            raise ValueError("without records_per_epoch, only the trial knows an epoch's batches")


def global_batch_size(hparams: Mapping[str, object]) -> int:
    """The trial's global batch size, 1 where it is missing or no positive finite number."""
    size = hparams.get("global_batch_size")
    if isinstance(size, bool) or not isinstance(size, int | float):
        return 1
    if isinstance(size, float) and not isfinite(size):
        return 1
    return max(1, int(size))
