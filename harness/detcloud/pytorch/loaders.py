"""The data loaders of a trial in training: our DataLoader, and other loaders where allowed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader as TorchDataLoader

from detcloud.core import DistributedContext
from detcloud.pytorch.data import DataLoader
from detcloud.shared.errors import DetcloudError, InvalidCall

# The epoch length of a loader without a length: too large to be reached, exact in JSON.
ENDLESS_EPOCH = 1 << 53


class PlainLoader:
    """A loader that the trial owns: the trial decides the order and the processes' shares.

    `count` limits the batches of a pass.
    """

    def __init__(self, loader: Any, count: int | None = None) -> None:
        self.loader, self._count = loader, count

    @property
    def is_whole(self) -> bool:
        """Whether the passes are not limited."""
        return self._count is None

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self.loader), self._count)

    def __len__(self) -> int:
        """Return the number of batches. Raises TypeError if the loader has no length."""
        length = len(self.loader)
        return length if self._count is None else min(length, self._count)

    def first_batches(self, count: int) -> PlainLoader:
        """Return a loader of the first `count` batches of each pass."""
        return PlainLoader(self.loader, count)

    def batches_from(self, _first: int, _seed: int) -> Iterator[Any]:
        """Return an endless iterator over batches, and ignore both arguments.

        The trial itself shuffles by the seed and skips trained batches.

        The first pass begins at once, not at the first batch: torch's iterator draws a random
        number, which an interrupted run has drawn earlier, too. Raises DetcloudError at a pass
        without batches.
        """
        return self._batches(iter(self.loader))

    def _batches(self, epoch: Iterator[Any]) -> Iterator[Any]:
        """Yield the batches of `epoch`, then of new passes, without end.

        Raises DetcloudError at a pass without batches.
        """
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
    """Yield the batches of a loader.

    For a share, add NO_BATCH up to the size of the largest share.
    """
    if isinstance(loader, PlainLoader) or not loader.is_share:
        yield from loader
        return
    batches = iter(loader)
    for _ in range(loader.pass_length()):
        yield next(batches, NO_BATCH)


def whole_loader(loader: Loader) -> Any:
    """Return the loader that the trial built, or our loader if the batches were limited."""
    return loader.loader if isinstance(loader, PlainLoader) and loader.is_whole else loader


@dataclass(frozen=True)
class Loaders:
    """The data loaders of a process."""

    training: Loader
    validation: Loader
    epoch_length: int
    """The number of batches in the chief's epoch, or ENDLESS_EPOCH if unknown."""


def share_loaders(
    training: object, validation: object, distributed: DistributedContext, *, checked: bool
) -> Loaders:
    """Check the loaders that a trial built, and reduce the training loader to this process's share.

    The epoch's length is the chief's, so all ranks must call this. The validation loader is not
    reduced. Raises InvalidCall for objects that are no iterable loaders. With `checked`, raises
    InvalidCall for any loader but our DataLoader. Raises DetcloudError if another process of the
    trial has exited.
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


def check_not_empty(loader: Loader, method: str) -> None:
    """Raise InvalidCall, naming `method`, if the loader's length is 0. Accept an unknown length."""
    try:
        count = len(loader)
    except TypeError:
        return
    if count == 0:
        raise InvalidCall(
            f"{method} returned a data loader that has no batch: check that the data set is not"
            " empty and, with drop_last=True, that it has at least one batch"
        )


def _epoch_length(loader: Loader) -> int:
    """Return the number of batches in an epoch, at least 1, or ENDLESS_EPOCH if unknown."""
    try:
        return max(1, len(loader))
    except TypeError:
        # An iterable dataset may have no length.
        return ENDLESS_EPOCH


def checked_loader(loader: object, method: str, checked: bool) -> Loader:
    """Return our DataLoader unchanged, and a loader of any other class as a PlainLoader.

    With `checked`, raise InvalidCall, naming `method`, for any loader but ours. Otherwise raise
    InvalidCall only for objects that are not iterable.
    """
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
