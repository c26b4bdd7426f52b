"""The data loader. Its order depends only on the trial's seed and the number of the batch."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Sized
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
    default_collate,
)
from torch.utils.data import DataLoader as TorchDataLoader

from detcloud.pytorch.generators import (
    capture_state,
    preserve_state,
    restore_state,
    seed_all,
    seed_worker,
)
from detcloud.pytorch.samplers import FixedShuffleSampler, adapt_batch_sampler
from detcloud.shared.errors import InvalidCall, InvalidValue

# Samplers that draw only from their `generator`, so that no epoch must be computed ahead.
_SEEDED_SAMPLERS = (RandomSampler, SequentialSampler, FixedShuffleSampler)
_PLAIN_BATCHES = (BatchSampler, list)
# The name of loading a batch in the traces of torch's profiler.
_PROFILED_NAME = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


Batches = BatchSampler | list[list[int]]


def derived_seed(*parts: int | str) -> int:
    """Return a seed in [0, 2^63) for `parts`. Equal parts give the same seed on every machine."""
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


class DataLoader:
    """A data loader for map-style datasets, with torch's arguments, that can start at any batch.

    The order of a pass depends on the trial's seed and the number of the pass. It comes from a
    shuffle or from a `sampler`. A sampler draws from generators that are seeded for the pass, and
    its `set_epoch`, if any, is called. An epoch has as many batches as the sampler's length says. A
    sampler that yields more or fewer batches makes passes that are longer or shorter than epochs.
    Random augmentation in worker processes is seeded for each batch, so that it does not depend on
    the number of workers.
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
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        **options: Any,
    ) -> None:
        """Create a loader with torch's arguments.

        Args:
            dataset: a map-style data set: an object with `__len__` and `__getitem__`.
            batch_size: the number of records in a batch of one process.
            shuffle: whether the records are in another order in each epoch.
            sampler: an order of records instead of a shuffle. An object with a length.
            batch_sampler: batches of record numbers instead of the three settings above.
            num_workers: the number of worker processes that load records.
            collate_fn: makes a batch from a list of records.
            pin_memory: whether batches are loaded into pinned memory, for a faster copy to a GPU.
            drop_last: whether an incomplete last batch is dropped.
            timeout: the seconds to wait for a batch of a worker process; 0 for no limit.
            worker_init_fn: called in each worker process with its number.
            multiprocessing_context: as for torch.
            generator: ignored with a printed notice, because the trial's seed decides the order.
            options: further arguments of torch's DataLoader.

        Raises:
            InvalidValue: a length is unknown, arguments exclude each other, or no batch exists.
        """
        _check_arguments(dataset, shuffle, sampler)
        if generator is not None:
            _print_unused_generator()
        if multiprocessing_context is not None:
            options["multiprocessing_context"] = multiprocessing_context
        self.dataset, self.num_workers = dataset, num_workers
        self.batch_size: int | None = batch_size
        self.collate_fn = collate_fn or default_collate
        self.pin_memory, self.drop_last = pin_memory, drop_last
        self.timeout, self.worker_init_fn = timeout, worker_init_fn
        options = {"timeout": timeout, "worker_init_fn": worker_init_fn, **options}
        self._options = {"collate_fn": collate_fn, "pin_memory": pin_memory, **options}
        if batch_sampler is None:
            order = sampler if sampler is not None else _default_sampler(dataset, shuffle)
            self._sampler: Any = order
            self._batches: Batches = BatchSampler(order, batch_size, drop_last)
        else:
            if shuffle or sampler is not None or drop_last or batch_size != 1:
                raise InvalidValue(
                    "batch_sampler excludes batch_size, shuffle, sampler and drop_last: it decides "
                    "all of them"
                )
            _check_sized(batch_sampler)
            self.batch_size = None
            self._sampler = getattr(batch_sampler, "sampler", batch_sampler)
            self._batches = batch_sampler
        self._rank, self._size = 0, 1
        if len(self._batches) == 0:
            raise InvalidValue(
                f"the data loader has no batch: {_length(dataset)} records, "
                f"batch_size {batch_size}, drop_last {drop_last}"
            )

    @property
    def sampler(self) -> Any:
        """The sampler of record numbers, or of a given `batch_sampler`."""
        return self._sampler

    @property
    def batch_sampler(self) -> Any:
        """The batches of a pass over all processes: a BatchSampler, or a list after
        `first_batches`.
        """
        return self._batches

    def get_data_loader(
        self, repeat: bool = False, skip: int = 0, num_replicas: int = 1, rank: int = 0
    ) -> TorchDataLoader[Any]:
        """Return torch's own loader over a share of the data, in the order of the sampler.

        The trial's seed does not influence the order.

        Args:
            repeat: whether the loader never ends.
            skip: the number of batches at the beginning to leave out.
            num_replicas: the number of processes.
            rank: the process whose share is loaded.

        Raises:
            InvalidValue: the rank is negative or not below `num_replicas`.
        """
        batches: Any = adapt_batch_sampler(self._batches, repeat, skip, num_replicas, rank)
        return TorchDataLoader(
            self.dataset, batch_sampler=batches, num_workers=self.num_workers, **self._options
        )

    def __len__(self) -> int:
        """Return the number of batches in an epoch; for a share, of the largest share."""
        return -(-len(self._batches) // self._size)

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over a single pass, which has the same order every time.

        A loader of `share` yields only the share's batches. The iteration raises InvalidCall for a
        sampler that yields no batch, and errors of the data set.
        """
        return self._iterate(0, passes=1)

    @property
    def is_share(self) -> bool:
        """Whether this loader loads only the share of a process."""
        return self._size > 1

    def pass_length(self) -> int:
        """Return the number of batches in a pass; for a share, in the largest share.

        For a user's sampler with an estimated length, a pass is drawn and counted.
        """
        order = _BatchOrder(self._sampler, self._batches, seed=0, passes=1, adds_seeds=False)
        batches = sum(1 for _ in order) if order.is_estimate else len(self._batches)
        return -(-batches // self._size)

    def batches_from(self, first: int, seed: int) -> Iterator[Any]:
        """Return an endless iterator over batches, from number `first` since the trial's start.

        `seed` decides the order. In a loader of `share`, the part of one process, `first` counts
        the batches of this process. The iteration raises InvalidCall for a sampler that yields no
        batch, and errors of the data set.
        """
        return self._iterate(seed, first=first)

    def share(self, rank: int, size: int) -> DataLoader:
        """Return a copy that loads the share of process `rank`: every `size`th batch from `rank`.

        The count continues over the ends of epochs, so that every process always has a batch. The
        share of a share is a share of the whole loader.
        """
        part = copy.copy(self)
        part._rank, part._size = rank, size
        return part

    def first_batches(self, count: int) -> DataLoader:
        """Return a copy of the loader with only the first `count` batches of a pass.

        The batches are drawn from the sampler now.
        """
        part = copy.copy(self)
        part._batches = list(islice(iter(self._batches), count))
        return part

    def _iterate(self, seed: int, first: int = 0, passes: int | None = None) -> Iterator[Any]:
        """Return an iterator over `passes` passes from batch `first` on. For None, it never ends.

        `seed` decides the order. In a share, `first` counts the batches of this process. The
        iteration raises InvalidCall for a sampler that yields no batch.
        """
        workers = self.num_workers
        order = _BatchOrder(
            self._sampler,
            self._batches,
            seed=seed,
            first=first * self._size,
            passes=passes,
            adds_seeds=workers > 0,
            share=(self._rank, self._size),
        )
        loader: TorchDataLoader[Any] = TorchDataLoader(
            _WorkerDataset(self.dataset) if workers else self.dataset,
            batch_sampler=order,
            num_workers=workers,
            # Without a generator, torch's loader would draw from the generator of the training.
            generator=torch.Generator().manual_seed(derived_seed(seed, "workers")),
            **self._options,
        )
        return iter(loader) if self._needs_torch else _loaded_batches(loader)

    @property
    def _needs_torch(self) -> bool:
        """Whether torch's own iterator is needed: for workers, pinned memory or a data pipe."""
        pins = bool(self._options.get("pin_memory"))
        return self.num_workers > 0 or pins or isinstance(self.dataset, MapDataPipe)


def _loaded_batches(loader: TorchDataLoader[Any]) -> Iterator[Any]:
    """Yield the batches of a loader without workers, equal to those of torch's own iterator.

    Batches are marked for the profiler only if a profiler runs. torch's iterator marks them always.
    That takes longer than the rest of the training loop (docs/benchmarks.md, `training`).
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
    """Return the records of a batch, at once if the dataset can do this."""
    return get_items(indices) if get_items else [dataset[index] for index in indices]


class _Batch(list[int]):
    """The indices of a batch, with the seed for the random augmentation."""

    seed: int


class _BatchOrder(Sampler[list[int]]):
    """The order of batches over all passes, or `passes` of them, from batch `first` on."""

    def __init__(
        self,
        sampler: Sampler[int],
        batches: Batches,
        *,
        seed: int,
        first: int = 0,
        passes: int | None = None,
        adds_seeds: bool,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        """Store the arguments.

        With `adds_seeds`, each batch is a `_Batch` with a seed for worker processes. `share` is
        (rank, size): of all batches, only every `size`th is yielded.
        """
        self._share = share
        self._sampler, self._batches, self._adds_seeds = sampler, batches, adds_seeds
        self._seed, self._first, self._passes = seed, first, passes
        is_plain = type(batches) in _PLAIN_BATCHES
        is_list = type(batches) is list
        self._is_seeded = is_list or (is_plain and type(sampler) in _SEEDED_SAMPLERS)
        is_torchs = type(sampler).__module__.partition(".")[0] == "torch"
        # A user's sampler may yield more or fewer batches than its length says.
        self.is_estimate = not self._is_seeded and not (is_plain and is_torchs)

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the indices of each batch of this process.

        Raises InvalidCall if a pass of the sampler has no batch.
        """
        rank, size = self._share
        adds_seeds, length = self._adds_seeds, len(self._batches)
        # If the length of passes is an estimate, earlier passes are run to count their batches.
        done = 0 if self.is_estimate else self._first // length
        start = done * length
        while self._passes is None or done < self._passes:
            self._start_pass(done)
            # Batches are distributed by their number since the trial's start.
            ours, skipped = (rank - start) % size, self._first - start
            number = -1
            for number, indices in enumerate(self._pass_batches(done)):
                if number >= skipped and number % size == ours:
                    yield self._with_seed(indices, done, number) if adds_seeds else indices
            if number < 0:
                raise InvalidCall(
                    f"{type(self._sampler).__name__} gave no batch in pass {done} and promised"
                    f" {length}: a sampler must give its indices at each pass over it"
                )
            done, start = done + 1, start + number + 1

    def _with_seed(self, indices: list[int], number: int, batch_number: int) -> _Batch:
        """Return a batch with the seed that the worker process sets before loading.

        `number` is the number of the pass, `batch_number` that of the batch in the pass.
        """
        batch = _Batch(indices)
        batch.seed = derived_seed(self._seed, "batch", number, batch_number)
        return batch

    def _start_pass(self, number: int) -> None:
        """Prepare the sampler and the batch sampler for pass `number`.

        Replace each one's `generator` by a generator that is seeded for this pass, and call
        `set_epoch(number)`. Skip a missing attribute or method.
        """
        for sampler in {id(each): each for each in (self._sampler, self._batches)}.values():
            if hasattr(sampler, "generator"):
                generator = torch.Generator().manual_seed(derived_seed(self._seed, "epoch", number))
                sampler.generator = generator
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(number)

    def _pass_batches(self, number: int) -> Iterator[list[int]]:
        """Yield the batches of pass `number`, each as a list of indices.

        The random generators of the training stay unchanged. Raises errors of the sampler.
        """
        if self._is_seeded:
            yield from self._batches
            return
        # A user's sampler may draw from the generators of the training at any time, and may never
        # end. So an epoch's batches are drawn at a time, with the generators preserved.
        length = len(self._batches)
        with preserve_state():
            seed_all(derived_seed(self._seed, "sampler", number) % 2**32)
            batches = iter(self._batches)
            part = list(islice(batches, length))
            state = capture_state()
        while part:
            yield from part
            if len(part) < length:
                return
            with preserve_state():
                restore_state(state)
                part = list(islice(batches, length))
                state = capture_state()


class _WorkerDataset(Dataset[Any]):
    """The dataset in worker processes, which seeds the generators for each batch."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return _length(self.dataset)

    def __getitems__(self, batch: _Batch) -> Any:
        """Seed this worker process for the batch, and return the batch's records."""
        seed_worker(batch.seed % 2**32)
        get_items: Callable[[list[int]], Any] | None = getattr(self.dataset, "__getitems__", None)
        return _records(self.dataset, get_items, batch)


def _default_sampler(dataset: Dataset[Any], shuffle: bool) -> Sampler[int]:
    """Return a random order with `shuffle`; else the order that a cached data set chooses.

    Other data sets are read in sequence.
    """
    sized: Any = dataset
    if shuffle:
        return RandomSampler(sized)
    # A cached data set may choose the order.
    sampler_of: Callable[[], Sampler[int] | None] = getattr(
        dataset, "default_sampler", lambda: None
    )
    return sampler_of() or SequentialSampler(sized)


def _length(dataset: Dataset[Any]) -> int:
    """Return the length of a dataset, or 0 without a length."""
    return len(dataset) if isinstance(dataset, Sized) else 0


def _print_unused_generator() -> None:
    print(
        "[detcloud] DataLoader(generator=...) is not used: the order of a pass comes from "
        "the trial's seed, so that training can go on where it stopped",
        flush=True,
    )


def _check_arguments(dataset: object, shuffle: bool, sampler: object | None) -> None:
    """Raise InvalidValue for a dataset that is not map-style, and for contradicting orders.

    Also raise InvalidValue for a sampler without a length.
    """
    countable = isinstance(dataset, Sized) and hasattr(dataset, "__getitem__")
    if isinstance(dataset, IterableDataset) or not countable:
        raise InvalidValue(
            f"{type(dataset).__name__} has no records to ask for by number, so training could not "
            "go on where it stopped: use a dataset with __len__ and __getitem__, or torch's own "
            "DataLoader after context.experimental.disable_dataset_reproducibility_checks()"
        )
    if sampler is not None and shuffle:
        raise InvalidValue("shuffle=True and a sampler both give an order: use one of them")
    if sampler is not None:
        _check_sized(sampler)


def _check_sized(sampler: object) -> None:
    """Raise InvalidValue for a sampler without a length."""
    if not isinstance(sampler, Sized):
        raise InvalidValue(
            f"{type(sampler).__name__} has no length: training needs to know how many batches an "
            "epoch has; give the sampler __len__"
        )
