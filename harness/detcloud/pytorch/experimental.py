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
    """Switches of the context. Call the methods in the trial's `__init__`."""

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
        0, and the trial resumes later. The decorated function raises DetcloudError for samples that
        a cache cannot store, and for failures of the store or disk.

        The decorated function also raises DetcloudError for an empty data set, and passes errors of
        the original function.

        With `shuffle`, each epoch has its own order. With `skip_shuffle_at_epoch_end` as well, all
        epochs have the same shuffled order. `num_workers` processes compute the samples for each
        process of the trial. Raises DetcloudError for an id or version that cannot name a folder.
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

        The decorated function returns a CachedDataset. All processes of the trial must call the
        decorated function. If the cache lacks this id and version, the samples are stored first. If
        a request to stop the trial arrives meanwhile, the decorated function raises SystemExit with
        0, and the trial resumes later. The decorated function raises DetcloudError for samples that
        a cache cannot store, and for failures of the store or disk.

        The decorated function also raises DetcloudError for an empty data set, and passes errors of
        the original function.

        With `shuffle`, all validations have the same shuffled order. `num_workers` processes
        compute the samples for each process of the trial. Raises DetcloudError for an id or version
        that cannot name a folder.
        """
        return self.data_layer.cache_validation_dataset(
            dataset_id, dataset_version, shuffle, num_workers=num_workers
        )

    def disable_auto_to_device(self) -> None:
        """Pass batches to the trial unmoved. The trial must call `context.to_device`."""
        self.moves_batches = False

    def use_amp(self) -> None:
        """Run batches in torch's autocast on a GPU, and scale the gradients in `backward`.

        Without a GPU, print that batches run in full precision. Raises DetcloudError after
        `wrap_scaler`.
        """
        self._context.use_amp("context.experimental.use_amp")

    def wrap_reducer(
        self,
        reducer: MetricReducer | type[MetricReducer] | Callable[[list[Any]], Any],
        name: str | None = None,
        for_training: bool = True,
        for_validation: bool = True,
    ) -> MetricReducer:
        """Call the context's `wrap_reducer`, which has replaced this method."""
        return self._context.wrap_reducer(reducer, name, for_training, for_validation)
