"""The data loaders of a trial as training uses them: ours, and torch's own where it may be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader as TorchDataLoader

from detcloud.core import DistributedContext
from detcloud.pytorch.data import DataLoader
from detcloud.shared.errors import DetcloudError, InvalidCall

# An epoch whose length is not known never ends, and stays a number that JSON holds.
ENDLESS_EPOCH = 1 << 53


class PlainLoader:
    """A loader whose order and share of the data are the trial's own business."""

    def __init__(self, loader: Any, count: int | None = None) -> None:
        self.loader, self._count = loader, count

    @property
    def is_whole(self) -> bool:
        return self._count is None

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self.loader), self._count)

    def __len__(self) -> int:
        """The number of batches; TypeError, as of the loader itself, where nobody knows it."""
        length = len(self.loader)
        return length if self._count is None else min(length, self._count)

    def first_batches(self, count: int) -> PlainLoader:
        return PlainLoader(self.loader, count)

    def batches_from(self, _first: int, _seed: int) -> Iterator[Any]:
        """Batches without end; the trial itself leaves out those that it has trained.

        The first iterator is made at once: one of torch's draws a random number, which a trial that
        goes on within an epoch has drawn before.
        """
        return self._batches(iter(self.loader))

    def _batches(self, epoch: Iterator[Any]) -> Iterator[Any]:
        while True:
            number = -1
            for number, batch in enumerate(epoch):  # noqa: B007
                yield batch
            if number < 0:
                raise DetcloudError(
                    "the training data loader has no batch: training cannot begin an epoch"
                )
            epoch = iter(self.loader)


Loader = DataLoader | PlainLoader

NO_BATCH = object()


def padded_batches(loader: Loader) -> Iterator[Any]:
    """The batches of a loader; a rank's share is filled up with NO_BATCH to the largest one."""
    if isinstance(loader, PlainLoader) or not loader.is_share:
        yield from loader
        return
    batches = iter(loader)
    for _ in range(loader.pass_length()):
        yield next(batches, NO_BATCH)


def whole_loader(loader: Loader) -> Any:
    """The loader as the trial built it, or with fewer batches."""
    return loader.loader if isinstance(loader, PlainLoader) and loader.is_whole else loader


@dataclass(frozen=True)
class Loaders:
    """The data loaders of one process; `epoch_length` is that of the chief, in batches."""

    training: Loader
    validation: Loader
    epoch_length: int


def share_loaders(
    training: object, validation: object, distributed: DistributedContext, *, checked: bool
) -> Loaders:
    """The loaders that a trial has built, with this process's share of the training data.

    InvalidCall for another thing than a loader, and for torch's own where `checked`.
    """
    ours = checked_loader(training, "build_training_data_loader", checked)
    if isinstance(ours, DataLoader) and distributed.can_exchange:
        ours = ours.share(distributed.rank, distributed.size)
    epoch_length = _epoch_length(ours)
    if distributed.size > 1 and distributed.can_exchange:
        epoch_length = distributed.broadcast(epoch_length)
    return Loaders(
        ours, checked_loader(validation, "build_validation_data_loader", checked), epoch_length
    )


def _epoch_length(loader: Loader) -> int:
    try:
        return max(1, len(loader))
    except TypeError:
        # Of an iterable dataset without a length.
        return ENDLESS_EPOCH


def checked_loader(loader: object, method: str, checked: bool) -> Loader:
    if isinstance(loader, DataLoader):
        return loader
    if isinstance(loader, TorchDataLoader) and checked:
        raise InvalidCall(
            f"{method} returned torch's own DataLoader, which cannot go on at the batch where "
            "training stopped: return detcloud.pytorch.DataLoader, which takes the same arguments, "
            "or call context.experimental.disable_dataset_reproducibility_checks() before"
        )
    if isinstance(loader, TorchDataLoader) or (not checked and hasattr(loader, "__iter__")):
        return PlainLoader(loader)
    raise InvalidCall(
        f"{method} returned {loader!r:.80}: a detcloud.pytorch.DataLoader was expected"
    )
