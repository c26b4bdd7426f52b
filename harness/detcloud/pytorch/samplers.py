"""Samplers that repeat, shard, skip and shuffle another sampler or batch sampler.

They are for loaders that a trial builds from torch's parts. Combine them in this order: shuffle,
repeat, shard, skip. Then exactly the batches that this worker has trained are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sized
from itertools import islice
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch.utils.data import BatchSampler, Sampler

from detcloud.shared.errors import InvalidValue
from detcloud.shared.parameter_names import accept_names

Item = TypeVar("Item", covariant=True)


class SizedSampler(Protocol[Item]):
    """An iterable with a length that can be iterated several times."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Item]: ...


class RepeatSampler(Sampler[Any]):
    """An endless repetition of another sampler. The length is that of a single pass."""

    def __init__(self, sampler: SizedSampler[Any]) -> None:
        self._sampler = sampler

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from self._sampler


class DistributedSampler(Sampler[Any]):
    """The share of a worker: every `num_workers`th item of a sampler, from number `rank` on.

    Raises InvalidValue if `rank` is not from 0 to `num_workers` - 1.
    """

    def __init__(self, sampler: SizedSampler[Any], num_workers: int, rank: int) -> None:
        if num_workers < 1 or not 0 <= rank < num_workers:
            raise InvalidValue(
                f"rank {rank} of {num_workers} workers: a rank from 0 to num_workers - 1 was"
                " expected"
            )
        self._sampler, self._num_workers, self._rank = sampler, num_workers, rank

    def __len__(self) -> int:
        """Return the number of items in the share."""
        whole, more = divmod(len(self._sampler), self._num_workers)
        return whole + (self._rank < more)

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self._sampler), self._rank, None, self._num_workers)


class SkipSampler(Sampler[Any]):
    """The items of a sampler after the first `skip`. The length is that of the whole sampler."""

    def __init__(self, sampler: SizedSampler[Any], skip: int) -> None:
        self._sampler, self._skip = sampler, skip

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self._sampler), self._skip, None)


class ReproducibleShuffleSampler(Sampler[Any]):
    """The items of a sampler in an order that depends on `seed` and the number of the pass.

    The order equals that of Determined's sampler. Passes are counted per object.
    """

    def __init__(self, sampler: SizedSampler[Any], seed: int) -> None:
        self._sampler = sampler
        self._random = np.random.RandomState(seed)

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[Any]:
        """Return all items of a pass in a new order, drawn from the object's generator."""
        items = list(self._sampler)
        self._random.shuffle(items)
        return iter(items)


class FixedShuffleSampler(Sampler[int]):
    """The numbers of a dataset's samples in an order that depends only on `seed`."""

    def __init__(self, dataset: Sized, seed: int) -> None:
        self._dataset, self._seed = dataset, seed

    def __len__(self) -> int:
        return len(self._dataset)

    def __iter__(self) -> Iterator[int]:
        """Return the numbers of all samples in the order of the seed."""
        generator = torch.Generator().manual_seed(self._seed)
        return iter(torch.randperm(len(self._dataset), generator=generator).tolist())


class _BatchWise(BatchSampler):
    """The base of batch samplers that use a sampler of this module for batches."""

    _batches: SizedSampler[list[int]]

    def __init__(self, batch_sampler: SizedSampler[list[int]], batches: SizedSampler[Any]) -> None:
        # BatchSampler's own constructor requires a sampler of indices and a batch size.
        self.batch_sampler, self._batches = batch_sampler, batches

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self._batches)


class RepeatBatchSampler(_BatchWise):
    """A batch sampler that repeats the batches of another sampler without end.

    The length is that of a single pass.
    """

    def __init__(self, batch_sampler: SizedSampler[list[int]]) -> None:
        super().__init__(batch_sampler, RepeatSampler(batch_sampler))


class DistributedBatchSampler(_BatchWise):
    """The share of a worker: every `num_workers`th batch of another sampler, from `rank` on.

    Raises InvalidValue if `rank` is not from 0 to `num_workers` - 1.
    """

    @accept_names(num_replicas="num_workers")
    def __init__(self, batch_sampler: SizedSampler[list[int]], num_workers: int, rank: int) -> None:
        super().__init__(batch_sampler, DistributedSampler(batch_sampler, num_workers, rank))


class SkipBatchSampler(_BatchWise):
    """The batches of a batch sampler after the first `skip`.

    The length is that of the whole sampler.
    """

    def __init__(self, batch_sampler: SizedSampler[list[int]], skip: int) -> None:
        super().__init__(batch_sampler, SkipSampler(batch_sampler, skip))


class ReproducibleShuffleBatchSampler(_BatchWise):
    """The batches of another sampler in an order that depends on `seed` and the pass."""

    def __init__(self, batch_sampler: SizedSampler[list[int]], seed: int) -> None:
        super().__init__(batch_sampler, ReproducibleShuffleSampler(batch_sampler, seed))


def adapt_batch_sampler(
    batch_sampler: SizedSampler[list[int]],
    repeat: bool = False,
    skip: int = 0,
    num_replicas: int = 1,
    rank: int = 0,
) -> SizedSampler[list[int]]:
    """Return a batch sampler that is repeated, distributed over processes and begins later.

    Without changes, return `batch_sampler` itself.

    Args:
        batch_sampler: an iterable of batches with a length.
        repeat: whether the batches repeat without end.
        skip: the number of batches at the beginning to leave out, counted in the share.
        num_replicas: the number of workers. With more than 1, only the share of one worker remains.
        rank: the worker whose share remains.

    Raises:
        InvalidValue: the rank is negative or not below `num_replicas`.
    """
    if repeat:
        batch_sampler = RepeatBatchSampler(batch_sampler)
    if num_replicas > 1:
        batch_sampler = DistributedBatchSampler(batch_sampler, num_replicas, rank)
    return SkipBatchSampler(batch_sampler, skip) if skip > 0 else batch_sampler
