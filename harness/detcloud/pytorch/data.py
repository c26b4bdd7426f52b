"""DataLoader: batches in an order that depends on the trial's seed and the batch's number alone."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sized
from itertools import islice
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
)
from torch.utils.data import DataLoader as TorchDataLoader

from detcloud import DetcloudError
from detcloud.pytorch.generators import preserved, seed_all

_OWN_OPTIONS = ("generator", "worker_init_fn", "batch_sampler")
# They draw from their `generator` or not at all; an epoch of theirs need not be listed at once.
_SEEDED = (RandomSampler, SequentialSampler)


Batches = BatchSampler | list[list[int]]


def derived_seed(*parts: int | str) -> int:
    """A seed in [0, 2^63) for one purpose: the same parts give the same seed on every machine."""
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


class DataLoader:
    """Takes what torch's DataLoader takes for a map-style dataset and can start at any batch.

    The order of an epoch comes from the trial's seed and the epoch's number: from a shuffle, or
    from a `sampler`, which draws from generators seeded for it and may have `set_epoch`. Random
    augmentation in worker processes is seeded for each batch, so it does not depend on the
    workers' number.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int = 1,
        shuffle: bool = False,
        sampler: Sampler[int] | None = None,
        drop_last: bool = False,
        num_workers: int = 0,
        **options: Any,
    ) -> None:
        """`options` go to torch's DataLoader. Raises DetcloudError for what cannot be repeated."""
        _check(dataset, shuffle, sampler, options)
        self.dataset = dataset
        self.batch_size = batch_size
        self._num_workers = num_workers
        self._options = options
        order = sampler if sampler is not None else _order(dataset, shuffle)
        self._sampler = order
        self._batches: Batches = BatchSampler(order, batch_size, drop_last)
        if len(self._batches) == 0:
            raise DetcloudError(
                f"the data loader has no batch: {_length(dataset)} records, "
                f"batch_size {batch_size}, drop_last {drop_last}"
            )

    def __len__(self) -> int:
        """Batches in one epoch."""
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        """The batches of one epoch, always in the same order."""
        return self._iterate(0, epochs=1)

    def batches_from(self, first: int, seed: int) -> Iterator[Any]:
        """Batches without end, starting with number `first` since the trial's start."""
        return self._iterate(seed, first=first)

    def cut(self, batches: int) -> DataLoader:
        """This loader with its first batches alone."""
        part = copy.copy(self)
        part._batches = list(islice(iter(self._batches), batches))
        return part

    def _iterate(self, seed: int, first: int = 0, epochs: int | None = None) -> Iterator[Any]:
        workers = self._num_workers
        order = _BatchOrder(
            self._sampler,
            self._batches,
            seed=seed,
            first=first,
            epochs=epochs,
            numbers=workers > 0,
        )
        loader: TorchDataLoader[Any] = TorchDataLoader(
            _SeededInWorkers(self.dataset) if workers else self.dataset,
            batch_sampler=order,
            num_workers=workers,
            # An own generator: torch's loader otherwise draws from the one that training uses.
            generator=torch.Generator().manual_seed(derived_seed(seed, "workers")),
            **self._options,
        )
        return iter(loader)


class _Batch(list[int]):
    """Indices of one batch and the seed of its augmentation."""

    seed: int


class _BatchOrder(Sampler[list[int]]):
    """Repeats the epochs, cuts each into batches and skips those before `first`."""

    def __init__(
        self,
        sampler: Sampler[int],
        batches: Batches,
        *,
        seed: int,
        first: int = 0,
        epochs: int | None = None,
        numbers: bool,
    ) -> None:
        """`numbers` gives each batch the seed that worker processes need."""
        self._sampler, self._batches, self._numbers = sampler, batches, numbers
        self._seed, self._first, self._epochs = seed, first, epochs

    def __iter__(self) -> Iterator[list[int]]:
        epoch, skipped = divmod(self._first, len(self._batches))
        while self._epochs is None or epoch < self._epochs:
            self._start(epoch)
            number = -1
            for number, indices in enumerate(self._indices(epoch)):
                if number >= skipped:
                    yield self._numbered(indices, epoch, number) if self._numbers else indices
            self._check_length(epoch, number + 1)
            epoch, skipped = epoch + 1, 0

    def _numbered(self, indices: list[int], epoch: int, number: int) -> _Batch:
        batch = _Batch(indices)
        batch.seed = derived_seed(self._seed, "batch", epoch, number)
        return batch

    def _check_length(self, epoch: int, given: int) -> None:
        if given != len(self._batches):
            raise DetcloudError(
                f"{type(self._sampler).__name__} gave {given} batches in epoch {epoch} and "
                f"promised {len(self._batches)}: each pass over a sampler must give as many "
                "indices as its length says"
            )

    def _start(self, epoch: int) -> None:
        if hasattr(self._sampler, "generator"):
            generator = torch.Generator().manual_seed(derived_seed(self._seed, "epoch", epoch))
            self._sampler.generator = generator
        if hasattr(self._sampler, "set_epoch"):
            self._sampler.set_epoch(epoch)

    def _indices(self, epoch: int) -> Iterable[list[int]]:
        """One epoch's batches, whatever its sampler draws from."""
        if type(self._sampler) in _SEEDED:
            return self._batches
        # A sampler of the user's may draw from the generators that training uses, now or later.
        with preserved():
            seed_all(derived_seed(self._seed, "sampler", epoch) % 2**32)
            return list(islice(self._batches, len(self._batches)))


class _SeededInWorkers(Dataset[Any]):
    """The dataset inside a worker process, which has generators of its own to seed."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return _length(self.dataset)

    def __getitems__(self, batch: _Batch) -> Any:
        seed_all(batch.seed % 2**32)
        whole: Callable[[list[int]], Any] | None = getattr(self.dataset, "__getitems__", None)
        return whole(batch) if whole else [self.dataset[index] for index in batch]


def _order(dataset: Dataset[Any], shuffle: bool) -> Sampler[int]:
    sized: Any = dataset
    return RandomSampler(sized) if shuffle else SequentialSampler(sized)


def _length(dataset: Dataset[Any]) -> int:
    return len(dataset) if isinstance(dataset, Sized) else 0


def _check(dataset: object, shuffle: bool, sampler: object | None, options: dict[str, Any]) -> None:
    countable = isinstance(dataset, Sized) and hasattr(dataset, "__getitem__")
    if isinstance(dataset, IterableDataset) or not countable:
        raise DetcloudError(
            f"{type(dataset).__name__} has no records to ask for by number, so training could not "
            "go on where it stopped: use a dataset with __len__ and __getitem__"
        )
    if sampler is not None and shuffle:
        raise DetcloudError("shuffle=True and a sampler both give an order: use one of them")
    if sampler is not None and not isinstance(sampler, Sized):
        raise DetcloudError(
            f"{type(sampler).__name__} has no length: training needs to know how many batches an "
            "epoch has; give the sampler __len__"
        )
    for name in _OWN_OPTIONS:
        if name in options:
            raise DetcloudError(
                f"{name} cannot be given: detcloud.pytorch.DataLoader sets it itself so that "
                "every batch can be repeated"
            )
