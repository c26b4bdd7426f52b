"""The position in training: the batch, the epoch, and the first batch of this process."""

from __future__ import annotations


class TrainingPosition:
    """The position in training, which the Trainer sets. A base of PyTorchTrialContext."""

    def __init__(self) -> None:
        self._initial_batch = 0
        self._batch_idx = 0
        # Trials written for Determined read this attribute.
        self._epoch_len = 1

    def set_position(self, batch_idx: int, epoch_length: int) -> None:
        """Set the number of the batch in training, and the number of batches in an epoch.

        The Trainer calls this before each batch.
        """
        self._batch_idx, self._epoch_len = batch_idx, epoch_length

    def set_initial_batch(self, batch_idx: int) -> None:
        """Set the first batch to train. The Trainer calls this before the loaders are built."""
        self._initial_batch = batch_idx

    def get_initial_batch(self) -> int:
        """Return the number of batches that were trained before this process began."""
        return self._initial_batch

    def current_train_batch(self) -> int:
        """Return the number of the batch in training, or else of the last trained batch, from 0."""
        return self._batch_idx

    def current_train_epoch(self) -> int:
        """Return the number of the epoch of `current_train_batch()`, from 0."""
        return self._batch_idx // self._epoch_len

    def is_epoch_start(self) -> bool:
        """Return whether the batch in training is the first of an epoch."""
        return self._batch_idx % self._epoch_len == 0

    def is_epoch_end(self) -> bool:
        """Return whether the batch in training is the last of an epoch."""
        return (self._batch_idx + 1) % self._epoch_len == 0
