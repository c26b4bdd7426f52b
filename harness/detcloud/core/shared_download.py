"""Downloads of checkpoints that the ranks of a node share.

The node's first rank fetches the files and sends every other rank of the node the folder or the
error. The ranks first agree on the files that any of them selects.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from enum import Enum
from pathlib import Path
from typing import Any

from detcloud.core.checkpoint_reader import CheckpointReader
from detcloud.core.checkpoint_selection import SelectionAnswer, common_selector
from detcloud.core.checkpoint_writer import Selector
from detcloud.core.distributed_context import DistributedContext
from detcloud.shared.errors import DetcloudError


class DownloadMode(Enum):
    """The ranks that download a checkpoint: each node's first rank for the node, or every rank."""

    LocalWorkersShareDownload = "LOCAL_WORKERS_SHARE_DOWNLOAD"
    """The first rank of each node downloads the files for all ranks of the node."""
    NoSharedDownload = "NO_SHARED_DOWNLOAD"
    """Each rank downloads its own files."""


def sharing_ranks(ranks: DistributedContext, mode: DownloadMode) -> DistributedContext | None:
    """Return `ranks` if the ranks of this node share a download. Return None otherwise.

    Ranks share unless `mode` is NoSharedDownload, this node has a single rank, or the ranks cannot
    exchange values. Raises ValueError for an unknown mode.
    """
    shares = DownloadMode(mode) is DownloadMode.LocalWorkersShareDownload
    return ranks if shares and ranks.local_size > 1 and ranks.can_exchange else None


def fetch(
    open_reader: Callable[[], AbstractContextManager[CheckpointReader]],
    root: Path,
    selector: Selector | None,
    ranks: DistributedContext | None,
) -> None:
    """Copy a checkpoint's files below `root`, then send the waiting ranks of the node the result.

    Called on the node's first rank, while the other ranks call `await_fetched`. The result is the
    folder or the error's text. Copy the files that `selector` or the selector of a waiting rank
    accepts; a selector of None accepts all. With `ranks` of None no rank waits. Copies stay after
    an error.

    Raises DetcloudError if `open_reader` finds no such checkpoint or storage is disabled. Raises
    CheckpointDamaged, StorageError, and errors of the own selector. Raises DetcloudError if another
    rank's selector fails or another rank has exited.
    """
    try:
        with open_reader() as reader:
            if ranks is not None:
                selector = common_selector(ranks, selector, reader.file_names)
            reader.copy_files(root, selector)
    except Exception as error:
        if ranks is not None:
            ranks.broadcast_local(("failed", str(error)))
        raise
    if ranks is not None:
        ranks.broadcast_local(("fetched", str(root)))


def await_fetched(ranks: DistributedContext, selector: Selector | None) -> Path:
    """Send the node's first rank the names that `selector` accepts; return the folder of the files.

    Called on every other rank of the node while the first rank runs `fetch`, and waits for the end
    of `fetch`. Raises the error of the own `selector`, or DetcloudError with the reason if the
    first rank fails or has exited.
    """
    selection = SelectionAnswer(ranks, selector)
    while True:
        message: tuple[str, Any] = ranks.broadcast_local(("", None))
        kind, value = message
        if kind == "fetched":
            return Path(value)
        if kind == "failed":
            text = f"the first process of this node could not fetch it: {value}"
            raise selection.error or DetcloudError(text)
        selection.answer(kind, value)
