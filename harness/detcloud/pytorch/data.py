"""The data loader, whose order depends on the trial's seed and the batch's number alone."""

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

    The order of a pass comes from the trial's seed and the pass's number: from a shuffle, or from a
    `sampler`, which draws from generators seeded for it and may have `set_epoch`. A pass is an
    epoch, unless a sampler gives more or fewer batches than its length says: an epoch has as many
    as that, and passes follow each other as they are. Random augmentation in worker processes is
    seeded for each batch, so it does not depend on the workers' number.
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
        """`options` go to torch's DataLoader, and `generator` is not used, as a line says.

        Raises InvalidValue for what cannot be repeated.
        """
        _check_arguments(dataset, shuffle, sampler)
        if generator is not None:
            print(
                "[detcloud] DataLoader(generator=...) is not used: the order of a pass comes from "
                "the trial's seed, so that training can go on where it stopped",
                flush=True,
            )
        if multiprocessing_context is not None:
            options["multiprocessing_context"] = multiprocessing_context
        self.dataset = dataset
        self.batch_size: int | None = batch_size
        self.num_workers = num_workers
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
        return self._sampler

    @property
    def batch_sampler(self) -> Any:
        return self._batches

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
        """The batches of one pass, always in the same order."""
        return self._iterate(0, passes=1)

    @property
    def is_share(self) -> bool:
        return self._size > 1

    def pass_length(self) -> int:
        """Count the batches that `__iter__` gives; of a share, those of the largest one."""
        order = _BatchOrder(self._sampler, self._batches, seed=0, passes=1, adds_seeds=False)
        whole = sum(1 for _ in order) if order.is_estimate else len(self._batches)
        return -(-whole // self._size)

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

    def _iterate(self, seed: int, first: int = 0, passes: int | None = None) -> Iterator[Any]:
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
    """The order of batches over all passes, from number `first` on."""

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
        """`adds_seeds` gives each batch the seed that worker processes need.

        Of all batches from number `first` on, `share` (rank, size) takes those of one process.
        """
        self._share = share
        self._sampler, self._batches, self._adds_seeds = sampler, batches, adds_seeds
        self._seed, self._first, self._passes = seed, first, passes
        is_plain = type(batches) in _PLAIN_BATCHES
        is_list = type(batches) is list
        self._is_seeded = is_list or (is_plain and type(sampler) in _SEEDED_SAMPLERS)
        is_torchs = type(sampler).__module__.partition(".")[0] == "torch"
        # Whether passes may have more or fewer batches than the length says: it is a user's code.
        self.is_estimate = not self._is_seeded and not (is_plain and is_torchs)

    def __iter__(self) -> Iterator[list[int]]:
        rank, size = self._share
        adds_seeds, length = self._adds_seeds, len(self._batches)
        # Passes whose length is an estimate are gone through, to count their batches.
        done = 0 if self.is_estimate else self._first // length
        start = done * length
        while self._passes is None or done < self._passes:
            self._start_pass(done)
            # Of all batches since the trial's start each process has every `size`th.
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
        batch = _Batch(indices)
        batch.seed = derived_seed(self._seed, "batch", number, batch_number)
        return batch

    def _start_pass(self, number: int) -> None:
        for sampler in {id(one): one for one in (self._sampler, self._batches)}.values():
            if hasattr(sampler, "generator"):
                generator = torch.Generator().manual_seed(derived_seed(self._seed, "epoch", number))
                sampler.generator = generator
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(number)

    def _pass_batches(self, number: int) -> Iterator[list[int]]:
        """The batches of one pass, drawn without moving the generators that training uses."""
        if self._is_seeded:
            yield from self._batches
            return
        # A sampler of the user's may draw from the generators that training uses, now or later,
        # and never end: it has them to itself for an epoch's batches at a time.
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


def _check_arguments(dataset: object, shuffle: bool, sampler: object | None) -> None:
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
    if not isinstance(sampler, Sized):
        raise InvalidValue(
            f"{type(sampler).__name__} has no length: training needs to know how many batches an "
            "epoch has; give the sampler __len__"
        )
