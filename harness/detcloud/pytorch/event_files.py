"""Writers of TensorBoard event files, for a trial's own images, texts and curves."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from importlib import import_module
from pathlib import Path
from typing import Any
from weakref import WeakSet

from detcloud.shared.errors import DetcloudError

# Returns the folder of the trial that was set up last.
TRIAL_FOLDER: ContextVar[Callable[[], Path] | None] = ContextVar("TRIAL_FOLDER", default=None)
_WRITERS: WeakSet[Any] = WeakSet()


def open_summary_writer(folder: Path) -> Any:
    """Create torch's SummaryWriter for a folder, and create a missing folder.

    `flush_writers` will flush the writer.

    Raises DetcloudError if the package tensorboard is not installed.
    """
    try:
        tensorboard = import_module("torch.utils.tensorboard")
    except ImportError:
        raise DetcloudError(
            "writing event files needs the package tensorboard, which is not installed: add it to "
            "the image, or `pip install tensorboard` in startup-hook.sh"
        ) from None
    writer = tensorboard.SummaryWriter(log_dir=str(folder))
    _WRITERS.add(writer)
    return writer


def flush_writers() -> None:
    """Flush every open writer, ignoring disk errors.

    torch's writers buffer events for up to two minutes, which a process would lose at its end.
    """
    for writer in list(_WRITERS):
        with suppress(OSError):
            writer.flush()


class TorchWriter:
    """Determined's writer for a trial's own curves and images. `writer` is torch's.

    Events of processes other than the chief are not shown.
    """

    def __init__(self) -> None:
        """Create a writer for the trial that was set up last, or else for a temporary folder.

        Raises DetcloudError if the package tensorboard is not installed.
        """
        folder = TRIAL_FOLDER.get()
        self.writer = open_summary_writer(
            folder() if folder is not None else Path(tempfile.mkdtemp(prefix="detcloud-events-"))
        )

    def add_scalar(self, name: str, value: float, step: int) -> None:
        """Add a value of a curve at batch `step`."""
        self.writer.add_scalar(name, value, step)

    def flush(self) -> None:
        """Write the buffered events to the disk."""
        self.writer.flush()

    def reset(self) -> None:
        """Write the buffered events to the disk, as Determined did."""
        self.writer.flush()
