"""A data set for tests of the data layer, with helpers to open and damage the cached set."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from detcloud import core
from detcloud.pytorch.data_layer import CachedDataset, DataLayer
from detcloud.pytorch.data_layer.shard import write_shards

COUNT = 10
VALUES = [number * number for number in range(COUNT)]


@dataclass
class Squares:
    """Data set of `count` squares; records accesses in `computed`, raises at sample `fails_at`."""

    computed: list[int] = field(default_factory=list)
    fails_at: int = -1
    wait: Callable[[], object] = lambda: None
    count: int = COUNT

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        if number == self.fails_at:
            raise ArithmeticError("no square")
        self.wait()
        self.computed.append(number)
        return torch.tensor([number]), number * number


@contextmanager
def layer_of(**data_layer: Any) -> Iterator[DataLayer]:
    with core.init(config={"data_layer": data_layer}, seed=3) as context:
        yield DataLayer(context)


def open_cached(data_layer: dict[str, Any], source: Any, **options: Any) -> CachedDataset:
    with layer_of(**data_layer) as layer:
        return layer.cache_train_dataset("squares", "v1", **options)(lambda: source)()


def values(dataset: Any) -> list[int]:
    return [dataset[number][1] for number in range(len(dataset))]


def shards(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.bin"))


def small_shards(samples: Any, folder: Path, prefix: str, finish: Any) -> Any:
    """Write each sample into a separate shard."""
    return write_shards(samples, folder, prefix, finish, shard_bytes=1)


def damage(path: Path, place: int) -> None:
    """Invert the byte at offset `place` of a file."""
    content = bytearray(path.read_bytes())
    content[place] ^= 0xFF
    path.write_bytes(content)
