"""Storing the state of a PyTorchTrial on the chief, in the background if possible."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

from detcloud.core import Context
from detcloud.core.available_memory import available_bytes
from detcloud.pytorch import snapshot
from detcloud.pytorch.plain_state import to_plain
from detcloud.pytorch.state_copy import StateCopier, state_bytes

# The largest share of free memory for a copy. Training sometimes needs more memory than now, for
# example for data loaders.
SHARE_MAX = 0.5
_MIB, _GIB = 1 << 20, 1 << 30
# Smaller states are written to a disk faster than a thread could begin.
SMALL_BYTES = 4 * _MIB

Finish = Callable[[Path], None]


class Mode(Enum):
    """The part of a save during which the training waits.

    - `COPYING`: the state is copied. Files are written and uploaded in the background.
    - `WRITING`: files are written. They are uploaded in the background.
    - `STORING`: files are written and uploaded.
    """

    COPYING = "copying"
    WRITING = "writing"
    STORING = "storing"


class StateStore:
    """Stores the states of a training, and prints the mode at the first save and at changes."""

    def __init__(
        self,
        context: Context,
        *,
        writes_in_step: bool,
        free_bytes: Callable[[], int | None] = available_bytes,
    ) -> None:
        """Create a store. `writes_in_step`: a callback adds files to each written checkpoint.

        `free_bytes` returns the memory that is free for a copy, or None if unknown.
        """
        self._core = context
        self._writes_in_step = writes_in_step
        options = context.info.config.get("optimizations") or {}
        self._is_asynchronous: bool | None = options.get("asynchronous_checkpoints")
        self._copier = StateCopier()
        self._free_bytes = free_bytes
        self._told: Mode | None = None

    def store(
        self, state: dict[str, Any], metadata: dict[str, Any], finish: Finish, *, is_last: bool
    ) -> tuple[str, bool]:
        """Store a state after the previous state; return the UUID, and whether storing is over.

        If the second part is False, the checkpoint is written or uploaded in the background. With
        `is_last`, nothing remains to be trained and everything is stored before the return.

        Args:
            finish: is called with the checkpoint's folder, to write all files but the state's.

        Raises:
            DetcloudError: the state contains other objects than tensors and plain data, or files
                cannot be written or stored, now or for the previous state.
        """
        self._core.checkpoint.wait()
        state = to_plain(state)
        snapshot.check_plain(state)
        size = state_bytes(state)
        mode, why = self._choose_mode(size)
        if why and mode is not self._told and not is_last:
            self._told = mode
            print(f"[detcloud] {why}", flush=True)
        if mode is Mode.COPYING and not is_last:
            copied = self._copier.copy_state(state)

            def write(folder: Path) -> None:
                snapshot.save_state(copied, folder)
                finish(folder)

            return self._core.checkpoint.store_behind(write, metadata, size), False
        is_behind = mode is not Mode.STORING and not is_last
        with self._core.checkpoint.store_path(metadata, asynchronous=is_behind) as (folder, uuid):
            snapshot.save_state(state, folder)
            finish(folder)
        return uuid, not is_behind

    def _choose_mode(self, size: int) -> tuple[Mode, str]:
        """Return the mode for a state of `size` bytes, and the reason as a line for the log.

        The reason is empty if the mode makes no difference.
        """
        is_small = size < SMALL_BYTES and self._core.checkpoint.is_on_disk
        if self._is_asynchronous is None and is_small:
            return Mode.STORING, ""
        if self._is_asynchronous is False:
            return Mode.STORING, (
                "checkpoints hold up the training until they are stored, as "
                "optimizations.asynchronous_checkpoints says"
            )
        if self._writes_in_step:
            return Mode.WRITING, (
                "checkpoints are written in the step and stored behind it: a callback has "
                "on_checkpoint_write_end, which adds to their files"
            )
        free = self._free_bytes()
        needed = max(0, size - self._copier.held_bytes)
        if free is not None and needed > SHARE_MAX * free:
            return Mode.WRITING, (
                f"checkpoints are written in the step and stored behind it: a copy of the state, "
                f"{size / _MIB:,.0f} MiB, would take more than half of the {free / _MIB:,.0f} MiB "
                "of memory that are free"
            )
        told = "" if free is None else f" in {free / _GIB:.1f} GiB of free memory"
        return Mode.COPYING, (
            f"checkpoints are written and stored behind the training, from a copy of the state: "
            f"{size / _MIB:.1f} MiB{told}"
        )
