"""The data loader, whose order depends on the trial's seed and the batch's number alone."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sized
from itertools import islice
from typing import Any

import torch
from torch.autograd import profiler
from torch.utils.data import (
    BatchSampler,
    Dataset,
    IterableDataset,
    MapDataPipe,
    RandomSampler,
    Sampler,
    SequentialSampler,
)
from torch.utils.data import DataLoader as TorchDataLoader

from detcloud.pytorch.generators import preserve_state, seed_all, seed_worker
from detcloud.pytorch.samplers import FixedShuffleSampler, adapt_batch_sampler
from detcloud.shared.errors import DetcloudError

_RESERVED_OPTIONS = ("generator",)
# Samplers that draw from their `generator` or not at all, so that an epoch need not be listed.
_SEEDED_SAMPLERS = (RandomSampler, SequentialSampler, FixedShuffleSampler)
_PLAIN_BATCHES = (BatchSampler, list)
# As traces name it in which torch's iterator loads batches.
_PROFILED_NAME = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


Batches = BatchSampler | list[list[int]]


def derived_seed(*parts: int | str) -> int:
    """A seed in [0, 2^63) for one purpose: the same parts give the same seed on every machine."""
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


class DataLoader:
    """A data loader for map-style datasets, with torch's arguments, that can start at any batch.

    The order of an epoch comes from the trial's seed and the epoch's number: from a shuffle, or
    from a `sampler`, which draws from generators seeded for it and may have `set_epoch`. Random
    augmentation in worker processes is seeded for each batch, so it does not depend on the
    workers' number.
    """

    def __init__(  # noqa: PLR0913 - torch's own, at their places.
        self,
        dataset: Dataset[Any],
        batch_size: int = 1,
        shuffle: bool = False,
        sampler: Sampler[int] | None = None,
        batch_sampler: BatchSampler | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        **options: Any,
    ) -> None:
        """`options` go to torch's DataLoader. Raises DetcloudError for what cannot be repeated."""
        _check_arguments(dataset, shuffle, sampler, options)
        self.dataset = dataset
        self.batch_size = batch_size
        self.num_workers = num_workers
        self._options = {"collate_fn": collate_fn, "pin_memory": pin_memory, **options}
        if batch_sampler is None:
            order = sampler if sampler is not None else _default_sampler(dataset, shuffle)
            self._sampler: Any = order
            self._batches: Batches = BatchSampler(order, batch_size, drop_last)
        else:
            if shuffle or sampler is not None or drop_last or batch_size != 1:
                raise DetcloudError(
                    "batch_sampler excludes batch_size, shuffle, sampler and drop_last: it decides "
                    "all of them"
                )
            _check_sized(batch_sampler)
            self._sampler = getattr(batch_sampler, "sampler", batch_sampler)
            self._batches = batch_sampler
        self._rank, self._size = 0, 1
        if len(self._batches) == 0:
            raise DetcloudError(
                f"the data loader has no batch: {_length(dataset)} records, "
                f"batch_size {batch_size}, drop_last {drop_last}"
            )

    def get_data_loader(
        self, repeat: bool = False, skip: int = 0, num_replicas: int = 1, rank: int = 0
    ) -> TorchDataLoader[Any]:
        """torch's own loader over the share of one process, from its batch `skip` on."""
        batches: Any = adapt_batch_sampler(self._batches, repeat, skip, num_replicas, rank)
        return TorchDataLoader(
            self.dataset, batch_sampler=batches, num_workers=self.num_workers, **self._options
        )

    def __len__(self) -> int:
        """The number of batches in one epoch; of a share, those of the largest one."""
        return -(-len(self._batches) // self._size)

    def __iter__(self) -> Iterator[Any]:
        """The batches of one epoch, always in the same order."""
        return self._iterate(0, epochs=1)

    def batches_from(self, first: int, seed: int) -> Iterator[Any]:
        """Batches without end, starting with number `first` since the trial's start."""
        return self._iterate(seed, first=first)

    def share(self, rank: int, size: int) -> DataLoader:
        """The batches of one of `size` processes: of all batches in their order, each `size`th.

        The order goes on over the epochs' ends, so that no process is ever without a batch.
        """
        part = copy.copy(self)
        part._rank, part._size = rank, size
        return part

    def first_batches(self, count: int) -> DataLoader:
        """A copy of the loader that has its first batches alone."""
        part = copy.copy(self)
        part._batches = list(islice(iter(self._batches), count))
        return part

    def _iterate(self, seed: int, first: int = 0, epochs: int | None = None) -> Iterator[Any]:
        workers = self.num_workers
        order = _BatchOrder(
            self._sampler,
            self._batches,
            seed=seed,
            first=first * self._size,
            epochs=epochs,
            adds_seeds=workers > 0,
            share=(self._rank, self._size),
        )
        loader: TorchDataLoader[Any] = TorchDataLoader(
            _WorkerDataset(self.dataset) if workers else self.dataset,
            batch_sampler=order,
            num_workers=workers,
            # A generator of its own: torch's loader would draw from the one that training uses.
            generator=torch.Generator().manual_seed(derived_seed(seed, "workers")),
            **self._options,
        )
        return iter(loader) if self._needs_torch else _loaded_batches(loader)

    @property
    def _needs_torch(self) -> bool:
        """Whether torch's own iterator does more than to load one batch after the other."""
        pins = bool(self._options.get("pin_memory"))
        return self.num_workers > 0 or pins or isinstance(self.dataset, MapDataPipe)


def _loaded_batches(loader: TorchDataLoader[Any]) -> Iterator[Any]:
    """The batches of a loader without workers, as torch's own iterator gives them.

    That marks each batch for the profiler, also where none runs, which takes longer than all that
    the training loop does in a batch (docs/benchmarks.md, `training`).
    """
    dataset: Any = loader.dataset
    order: Any = loader.batch_sampler
    get_items, collate = getattr(dataset, "__getitems__", None), loader.collate_fn
    for indices in order:
        if profiler._is_profiler_enabled:
            with profiler.record_function(_PROFILED_NAME):
                batch = collate(_records(dataset, get_items, indices))
        else:
            batch = collate(_records(dataset, get_items, indices))
        yield batch


def _records(dataset: Any, get_items: Callable[[Any], Any] | None, indices: Any) -> Any:
    return get_items(indices) if get_items else [dataset[index] for index in indices]


class _Batch(list[int]):
    """The indices of one batch and the seed of its augmentation."""

    seed: int


class _BatchOrder(Sampler[list[int]]):
    """The order of batches over all epochs, from number `first` on."""

    def __init__(
        self,
        sampler: Sampler[int],
        batches: Batches,
        *,
        seed: int,
        first: int = 0,
        epochs: int | None = None,
        adds_seeds: bool,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        """`adds_seeds` gives each batch the seed that worker processes need.

        Of all batches from number `first` on, `share` (rank, size) takes those of one process.
        """
        self._share = share
        self._sampler, self._batches, self._adds_seeds = sampler, batches, adds_seeds
        self._seed, self._first, self._epochs = seed, first, epochs

    def __iter__(self) -> Iterator[list[int]]:
        rank, size = self._share
        length, adds_seeds = len(self._batches), self._adds_seeds
        epoch, skipped = divmod(self._first, length)
        while self._epochs is None or epoch < self._epochs:
            self._start_epoch(epoch)
            # Of all batches since the trial's start each process has every `size`th.
            ours = (rank - epoch * length) % size
            number = -1
            for number, indices in enumerate(self._epoch_batches(epoch)):
                if number >= skipped and number % size == ours:
                    yield self._with_seed(indices, epoch, number) if adds_seeds else indices
            self._check_length(epoch, number + 1)
            epoch, skipped = epoch + 1, 0

    def _with_seed(self, indices: list[int], epoch: int, number: int) -> _Batch:
        batch = _Batch(indices)
        batch.seed = derived_seed(self._seed, "batch", epoch, number)
        return batch

    def _check_length(self, epoch: int, count: int) -> None:
        if count != len(self._batches):
            raise DetcloudError(
                f"{type(self._sampler).__name__} gave {count} batches in epoch {epoch} and "
                f"promised {len(self._batches)}: each pass over a sampler must give as many "
                "indices as its length says"
            )

    def _start_epoch(self, epoch: int) -> None:
        for sampler in {id(one): one for one in (self._sampler, self._batches)}.values():
            if hasattr(sampler, "generator"):
                generator = torch.Generator().manual_seed(derived_seed(self._seed, "epoch", epoch))
                sampler.generator = generator
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)

    def _epoch_batches(self, epoch: int) -> Iterable[list[int]]:
        """The batches of one epoch, drawn without moving the generators that training uses."""
        if type(self._sampler) in _SEEDED_SAMPLERS and type(self._batches) in _PLAIN_BATCHES:
            return self._batches
        # A sampler of the user's may draw from the generators that training uses, now or later.
        with preserve_state():
            seed_all(derived_seed(self._seed, "sampler", epoch) % 2**32)
            return list(islice(self._batches, len(self._batches)))


class _WorkerDataset(Dataset[Any]):
    """The dataset as worker processes use it, which seed their own generators for each batch."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return _length(self.dataset)

    def __getitems__(self, batch: _Batch) -> Any:
        seed_worker(batch.seed % 2**32)
        get_items: Callable[[list[int]], Any] | None = getattr(self.dataset, "__getitems__", None)
        return _records(self.dataset, get_items, batch)


def _default_sampler(dataset: Dataset[Any], shuffle: bool) -> Sampler[int]:
    sized: Any = dataset
    if shuffle:
        return RandomSampler(sized)
    # A cached data set may have an order of its own.
    sampler_of: Callable[[], Sampler[int] | None] = getattr(
        dataset, "default_sampler", lambda: None
    )
    return sampler_of() or SequentialSampler(sized)


def _length(dataset: Dataset[Any]) -> int:
    return len(dataset) if isinstance(dataset, Sized) else 0


def _check_arguments(
    dataset: object, shuffle: bool, sampler: object | None, options: dict[str, Any]
) -> None:
    countable = isinstance(dataset, Sized) and hasattr(dataset, "__getitem__")
    if isinstance(dataset, IterableDataset) or not countable:
        raise DetcloudError(
            f"{type(dataset).__name__} has no records to ask for by number, so training could not "
            "go on where it stopped: use a dataset with __len__ and __getitem__, or torch's own "
            "DataLoader after context.experimental.disable_dataset_reproducibility_checks()"
        )
    if sampler is not None and shuffle:
        raise DetcloudError("shuffle=True and a sampler both give an order: use one of them")
    if sampler is not None:
        _check_sized(sampler)
    for name in _RESERVED_OPTIONS:
        if name in options:
            raise DetcloudError(
                f"{name} cannot be given: detcloud.pytorch.DataLoader sets it itself so that "
                "every batch can be repeated"
            )


def _check_sized(sampler: object) -> None:
    if not isinstance(sampler, Sized):
        raise DetcloudError(
            f"{type(sampler).__name__} has no length: training needs to know how many batches an "
            "epoch has; give the sampler __len__"
        )
