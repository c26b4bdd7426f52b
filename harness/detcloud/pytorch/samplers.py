"""Samplers that repeat, shard, skip and shuffle another sampler or batch sampler.

For data loaders that a trial builds of torch's own parts. Where they are combined: shuffle, repeat,
shard, skip, so that what is skipped is what this worker has seen.
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
    """Anything that has a length and can be iterated more than once."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Item]: ...


class RepeatSampler(Sampler[Any]):
    """The items of a sampler again and again; the length is that of one pass."""

    def __init__(self, sampler: SizedSampler[Any]) -> None:
        self._sampler = sampler

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from self._sampler


class DistributedSampler(Sampler[Any]):
    """Every `num_workers`th item of a sampler, from number `rank` on."""

    def __init__(self, sampler: SizedSampler[Any], num_workers: int, rank: int) -> None:
        if num_workers < 1 or not 0 <= rank < num_workers:
            raise InvalidValue(
                f"rank {rank} of {num_workers} workers: a rank from 0 to num_workers - 1 was"
                " expected"
            )
        self._sampler, self._num_workers, self._rank = sampler, num_workers, rank

    def __len__(self) -> int:
        whole, more = divmod(len(self._sampler), self._num_workers)
        return whole + (self._rank < more)

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self._sampler), self._rank, None, self._num_workers)


class SkipSampler(Sampler[Any]):
    """The items of a sampler after the first `skip`; the length is that of the whole."""

    def __init__(self, sampler: SizedSampler[Any], skip: int) -> None:
        self._sampler, self._skip = sampler, skip

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self._sampler), self._skip, None)


class ReproducibleShuffleSampler(Sampler[Any]):
    """The items of a sampler in an order that `seed` and the number of the pass decide alone: the
    one that it had in Determined.
    """

    def __init__(self, sampler: SizedSampler[Any], seed: int) -> None:
        self._sampler = sampler
        self._random = np.random.RandomState(seed)

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[Any]:
        items = list(self._sampler)
        self._random.shuffle(items)
        return iter(items)


class FixedShuffleSampler(Sampler[int]):
    """The numbers of a dataset's samples in an order that `seed` decides, the same in each pass."""

    def __init__(self, dataset: Sized, seed: int) -> None:
        self._dataset, self._seed = dataset, seed

    def __len__(self) -> int:
        return len(self._dataset)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self._seed)
        return iter(torch.randperm(len(self._dataset), generator=generator).tolist())


class _BatchWise(BatchSampler):
    """A batch sampler whose batches come from one of the samplers above."""

    _batches: SizedSampler[list[int]]

    def __init__(self, batch_sampler: SizedSampler[list[int]], batches: SizedSampler[Any]) -> None:
        # Not BatchSampler's own, which wants a sampler of indices and a size.
        self.batch_sampler, self._batches = batch_sampler, batches

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self._batches)


class RepeatBatchSampler(_BatchWise):
    """The batches of a batch sampler again and again."""

    def __init__(self, batch_sampler: SizedSampler[list[int]]) -> None:
        super().__init__(batch_sampler, RepeatSampler(batch_sampler))


class DistributedBatchSampler(_BatchWise):
    """Every `num_workers`th batch of a batch sampler, from number `rank` on."""

    @accept_names(num_replicas="num_workers")
    def __init__(self, batch_sampler: SizedSampler[list[int]], num_workers: int, rank: int) -> None:
        super().__init__(batch_sampler, DistributedSampler(batch_sampler, num_workers, rank))


class SkipBatchSampler(_BatchWise):
    """The batches of a batch sampler after the first `skip`."""

    def __init__(self, batch_sampler: SizedSampler[list[int]], skip: int) -> None:
        super().__init__(batch_sampler, SkipSampler(batch_sampler, skip))


class ReproducibleShuffleBatchSampler(_BatchWise):
    """The batches of a batch sampler in an order that `seed` and the pass decide alone."""

    def __init__(self, batch_sampler: SizedSampler[list[int]], seed: int) -> None:
        super().__init__(batch_sampler, ReproducibleShuffleSampler(batch_sampler, seed))


def adapt_batch_sampler(
    batch_sampler: SizedSampler[list[int]],
    repeat: bool = False,
    skip: int = 0,
    num_replicas: int = 1,
    rank: int = 0,
) -> SizedSampler[list[int]]:
    """A batch sampler for one worker of several: repeated, sharded and without the first `skip`
    batches of the worker's own.
    """
    if repeat:
        batch_sampler = RepeatBatchSampler(batch_sampler)
    if num_replicas > 1:
        batch_sampler = DistributedBatchSampler(batch_sampler, num_replicas, rank)
    return SkipBatchSampler(batch_sampler, skip) if skip > 0 else batch_sampler
