"""Lengths of training in the unit of the configuration, and the conversion to batches."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Literal

Unit = Literal["steps", "batches", "records", "epochs"]


@dataclass(frozen=True, slots=True)
class Lengths:
    """The unit of an experiment's lengths, and the conversions to and from batches.

    Conversions to batches round down, but records and epochs amount to at least one batch.
    """

    unit: Unit
    """The unit of lengths in the configuration. Steps belong to the step era."""
    batches_per_step: int = 100
    """The number of batches in a step."""
    records_per_epoch: int = 0
    """The number of records in an epoch. 0: only the trial knows the length of an epoch."""

    @property
    def counts_epochs(self) -> bool:
        """Return whether lengths are in epochs and `records_per_epoch` is unknown.

        Such lengths cannot be converted here: only the trial knows the number of batches of an
        epoch.
        """
        return self.unit == "epochs" and not self.records_per_epoch

    def batches(self, length: int, hparams: Mapping[str, object]) -> int:
        """Convert `length` units to batches, rounded down, for a trial with the given
        hyperparameters.

        Records and epochs amount to at least 1 batch.

        Raises:
            ValueError: `counts_epochs` is True.
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
        """Convert batches to units of the configuration, for a trial with the given
        hyperparameters.

        The result may be a fraction of a unit.

        Raises:
            ValueError: `counts_epochs` is True.
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
        """Raise a ValueError if `counts_epochs` is True."""
        if self.counts_epochs:
            raise ValueError("without records_per_epoch, only the trial knows an epoch's batches")


def global_batch_size(hparams: Mapping[str, object]) -> int:
    """Return the hyperparameter `global_batch_size` as an integer of at least 1.

    Return 1 if the hyperparameter is missing, or is not a finite number.
    """
    size = hparams.get("global_batch_size")
    if isinstance(size, bool) or not isinstance(size, int | float):
        return 1
    if isinstance(size, float) and not isfinite(size):
        return 1
    return max(1, int(size))
