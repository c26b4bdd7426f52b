"""`context.experimental`: what a trial may turn off, cached data sets and mixed precision."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from detcloud.pytorch.reducers import MetricReducer

if TYPE_CHECKING:
    from detcloud.pytorch.context import PyTorchTrialContext
    from detcloud.pytorch.data_layer.layer import DataLayer, Decorator


class PyTorchExperimentalContext:
    """The context's switches; each is for the trial's `__init__`."""

    def __init__(self, context: PyTorchTrialContext) -> None:
        self._context = context
        self.checks_data_sets = True
        self.moves_batches = True

    def disable_dataset_reproducibility_checks(self) -> None:
        """Take torch's own DataLoader, over any kind of dataset.

        The trial then shares the data out over its processes, shuffles it by the trial's seed and
        leaves out the first `get_initial_batch()` batches by itself, as far as it needs to.
        """
        self.checks_data_sets = False

    @cached_property
    def data_layer(self) -> DataLayer:
        """The data layer, imported by the trials that cache data sets."""
        from detcloud.pytorch.data_layer.layer import DataLayer

        return DataLayer(self._context.core)

    def cache_train_dataset(
        self,
        dataset_id: str,
        dataset_version: str,
        shuffle: bool = False,
        skip_shuffle_at_epoch_end: bool = False,
        *,
        num_workers: int = 0,
    ) -> Decorator:
        """Decorate the function that makes the training data set: see DataLayer."""
        return self.data_layer.cache_train_dataset(
            dataset_id,
            dataset_version,
            shuffle,
            skip_shuffle_at_epoch_end,
            num_workers=num_workers,
        )

    def cache_validation_dataset(
        self,
        dataset_id: str,
        dataset_version: str,
        shuffle: bool = False,
        *,
        num_workers: int = 0,
    ) -> Decorator:
        """Decorate the function that makes the validation data set: see DataLayer."""
        return self.data_layer.cache_validation_dataset(
            dataset_id, dataset_version, shuffle, num_workers=num_workers
        )

    def disable_auto_to_device(self) -> None:
        """Give batches to the trial as they come from the loader; it calls `to_device`."""
        self.moves_batches = False

    def use_amp(self) -> None:
        """Run batches in torch's autocast on a GPU and scale their gradients."""
        self._context.use_amp("context.experimental.use_amp")

    def wrap_reducer(
        self,
        reducer: MetricReducer | type[MetricReducer] | Callable[[list[Any]], Any],
        name: str | None = None,
        for_training: bool = True,
        for_validation: bool = True,
    ) -> MetricReducer:
        """The former place of the context's `wrap_reducer`."""
        return self._context.wrap_reducer(reducer, name, for_training, for_validation)
