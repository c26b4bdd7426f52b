"""The data set that a trial reads from a cache: map-style, with an order for each epoch."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset, RandomSampler, Sampler, Subset

from detcloud.pytorch.data import derived_seed
from detcloud.pytorch.data_layer.manifest import Manifest
from detcloud.pytorch.data_layer.sample import DamagedSample, decode_sample
from detcloud.pytorch.data_layer.shard import DamagedShard, ShardReader
from detcloud.pytorch.samplers import FixedShuffleSampler
from detcloud.shared.errors import DetcloudError


class CachedDataset(Dataset[Any]):
    """The samples of a cache, in the order of the original data set.

    `detcloud.pytorch.DataLoader` shuffles the samples if `is_shuffled`, distributes them over the
    trial's processes, and resumes within an epoch. For other loaders, use `shard`.
    """

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        *,
        seed: int = 0,
        is_shuffled: bool = False,
        is_shuffled_once: bool = False,
    ) -> None:
        """Store the arguments, and create a reader for each shard of the manifest.

        The shards are files in the build's subfolder of `folder`. A file is opened at the first
        read of a sample, so a missing file raises an error only then. With `is_shuffled`, `seed`
        decides the order. If `is_shuffled_once` is also set, all epochs have the same order.
        """
        self.folder, self.manifest, self.seed = folder, manifest, seed
        self.is_shuffled, self.is_shuffled_once = is_shuffled, is_shuffled_once
        self._open()

    def __len__(self) -> int:
        """Return the number of samples."""
        return self.manifest.samples

    def __getitem__(self, index: int) -> Any:
        """Return a sample; negative numbers count from the end.

        Raises IndexError for a number out of range, and DetcloudError if the sample's bytes are
        damaged. After damage, the next trial checks the whole cache.
        """
        number = index + len(self) if index < 0 else index
        if not 0 <= number < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        shard = bisect_right(self._firsts, number) - 1
        try:
            return decode_sample(self._readers[shard].read(number - self._firsts[shard]))
        except (DamagedShard, DamagedSample, OSError) as error:
            self._suspect_damage()
            raise DetcloudError(
                f"sample {index} of the cached data set {self.manifest.name} cannot be read: "
                f"{error}. All of it is checked when the trial starts again, and made again if it "
                "is damaged"
            ) from error

    def map(self, function: Callable[[Any], Any]) -> Dataset[Any]:
        """Return a data set that applies `function` to each sample at reading.

        Use `map` for random augmentation, which a cache would repeat equally in every epoch.
        """
        return _MappedDataset(self, function)

    def shard(self, rank: int, size: int, epoch: int = 0) -> Dataset[Any]:
        """Return the share of a worker: every `size`th sample in the order of an epoch.

        The lengths of shares differ by at most 1. Shares with equal seeds are equal on every
        machine.

        Args:
            rank: the number of the worker, from 0.
            size: the number of workers.
            epoch: the epoch whose order is used.

        Raises:
            DetcloudError: the rank is impossible.
        """
        if size < 1 or not 0 <= rank < size:
            raise DetcloudError(f"shard {rank} of {size}: expected a rank from 0 to size - 1")
        return Subset(self, self._order(epoch)[rank::size])

    def default_sampler(self) -> Sampler[int] | None:
        """Return the sampler for a loader without a chosen order.

        Return None if samples are not shuffled.
        """
        return _sampler_of(self, self)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for another process, which opens the files again."""
        return {k: v for k, v in self.__dict__.items() if k not in ("_readers", "_firsts")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the state of `__getstate__`, with new readers."""
        self.__dict__.update(state)
        self._open()

    def _open(self) -> None:
        """Create a reader for each shard. Open no file."""
        build, shards = self.folder / self.manifest.build, self.manifest.shards
        self._readers = [ShardReader(build, shard) for shard in shards]
        self._firsts = [0, *accumulate(shard.samples for shard in shards[:-1])]

    def _order(self, epoch: int) -> list[int]:
        """Return the numbers of all samples in the order of `epoch`."""
        if not self.is_shuffled:
            return list(range(len(self)))
        if self.is_shuffled_once:
            return list(FixedShuffleSampler(self, self.seed))
        generator = torch.Generator().manual_seed(derived_seed(self.seed, "epoch", epoch))
        return list(RandomSampler(self, generator=generator))

    def _suspect_damage(self) -> None:
        """Mark the cache, so that the next trial that opens the cache checks every sample."""
        try:
            suspicion_file(self.folder, self.manifest).touch()
        except OSError:
            # The folder may be read-only here. Then the damage is not recorded.
            return


class _MappedDataset(Dataset[Any]):
    """A cached data set with a function that changes each sample when it is read."""

    def __init__(self, cached: CachedDataset, function: Callable[[Any], Any]) -> None:
        self.cached, self.function = cached, function

    def __len__(self) -> int:
        return len(self.cached)

    def __getitem__(self, index: int) -> Any:
        """Return the function's result for the sample of number `index`.

        Raises IndexError for a number out of range, DetcloudError if the sample's bytes are
        damaged, and errors of the function.
        """
        return self.function(self.cached[index])

    def default_sampler(self) -> Sampler[int] | None:
        """Return the sampler for a loader without a chosen order.

        Return None if samples are not shuffled.
        """
        return _sampler_of(self.cached, self)


def suspicion_file(folder: Path, manifest: Manifest) -> Path:
    """Return the path of the file that marks a build as damaged, to be checked completely."""
    return folder / f"{manifest.build}.suspect"


def _sampler_of(cached: CachedDataset, dataset: Any) -> Sampler[int] | None:
    """Return the sampler of `dataset` for the order of `cached`.

    Return None if samples are not shuffled.
    """
    if not cached.is_shuffled:
        return None
    if cached.is_shuffled_once:
        return FixedShuffleSampler(dataset, cached.seed)
    return RandomSampler(dataset)
