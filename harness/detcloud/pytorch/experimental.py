"""`context.experimental`: switches of the context, cached data sets and mixed precision."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from detcloud import core
from detcloud.pytorch.reducers import MetricReducer

if TYPE_CHECKING:
    from detcloud.pytorch.data_layer.layer import DataLayer, Decorator


class SwitchedContext(Protocol):
    """The parts of a PyTorchTrialContext that the switches use."""

    core: core.Context

    def use_amp(self, reason: str) -> None: ...

    def wrap_reducer(
        self,
        reducer: MetricReducer | type[MetricReducer] | Callable[[list[Any]], Any],
        name: str | None = None,
        for_training: bool = True,
        for_validation: bool = True,
    ) -> MetricReducer: ...


class PyTorchExperimentalContext:
    """Switches of the context, as `context.experimental`. Call the methods in the trial's
    `__init__`.
    """

    def __init__(self, context: SwitchedContext) -> None:
        self._context = context
        self.checks_data_sets = True
        self.moves_batches = True

    def disable_dataset_reproducibility_checks(self) -> None:
        """Accept torch's own DataLoader and other iterable loaders.

        The trial must then distribute the data over processes and shuffle by the trial's seed. To
        resume within an epoch, it must skip the first `get_initial_batch()` batches.
        """
        self.checks_data_sets = False

    @cached_property
    def data_layer(self) -> DataLayer:
        """The data layer of this trial."""
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
        """Return a decorator for the function that creates the training set (map-style).

        The decorated function returns a CachedDataset. All processes of the trial must call the
        decorated function. If the cache lacks this id and version, the samples are stored first. If
        a request to stop the trial arrives meanwhile, the decorated function raises SystemExit with
        0, and the trial resumes later. The decorated function raises DetcloudError for an empty
        data set, for samples that a cache cannot store, and for failures of the store or disk.
        Errors of the original function are raised unchanged.

        Args:
            dataset_id: the name of the data set.
            dataset_version: the version. Another version is another cache.
            shuffle: whether each epoch has an order of its own.
            skip_shuffle_at_epoch_end: with `shuffle`, whether all epochs have the same shuffled
                order.
            num_workers: the processes that compute samples, for each process of the trial. With 0,
                the trial's process computes them.

        Raises:
            DetcloudError: the id or version cannot name a folder.
        """
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
        """Return a decorator for the function that creates the validation set (map-style).

        The decorated function behaves as the function that `cache_train_dataset` decorates.

        Args:
            dataset_id: the name of the data set.
            dataset_version: the version. Another version is another cache.
            shuffle: whether all validations have the same shuffled order.
            num_workers: the processes that compute samples, for each process of the trial. With 0,
                the trial's process computes them.

        Raises:
            DetcloudError: the id or version cannot name a folder.
        """
        return self.data_layer.cache_validation_dataset(
            dataset_id, dataset_version, shuffle, num_workers=num_workers
        )

    def disable_auto_to_device(self) -> None:
        """Pass batches to the trial unmoved. The trial must call `context.to_device`."""
        self.moves_batches = False

    def use_amp(self) -> None:
        """Run batches in torch's autocast on a GPU, and scale the gradients in `backward`.

        The setting `optimizations.mixed_precision` has the same effect. Without a GPU, print that
        batches run in full precision.

        Raises:
            DetcloudError: `wrap_scaler` was called before.
        """
        self._context.use_amp("context.experimental.use_amp")

    def wrap_reducer(
        self,
        reducer: MetricReducer | type[MetricReducer] | Callable[[list[Any]], Any],
        name: str | None = None,
        for_training: bool = True,
        for_validation: bool = True,
    ) -> MetricReducer:
        """Call the context's `wrap_reducer`, which has replaced this method.

        Args:
            reducer: as for `wrap_reducer` of the context.
            name: as for `wrap_reducer` of the context.
            for_training: as for `wrap_reducer` of the context.
            for_validation: as for `wrap_reducer` of the context.
        """
        return self._context.wrap_reducer(reducer, name, for_training, for_validation)
