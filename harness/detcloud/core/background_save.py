"""Saves of checkpoints in the foreground or in a background thread, never two at a time.

The background thread is a daemon. A trial whose machine is about to end can therefore exit during
an upload. A trial that ends normally waits for the upload.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

MEASURED_MAX = 3


@dataclass
class Save:
    """A checkpoint that is being stored or was stored."""

    uuid: str
    bytes_total: int = 0
    """The size of the checkpoint; 0 while the size is unknown."""
    began: float = field(default_factory=time.monotonic)
    """The start of the save, in seconds of `time.monotonic`."""
    ended: float | None = None
    """The end of the save, in seconds of `time.monotonic`; None until the save has succeeded or
    failed.
    """
    is_stored: bool = False
    """Whether the save has succeeded: the checkpoint is stored and reported."""

    @property
    def bytes_per_second(self) -> float:
        """The rate of an ended save, from the start to the report."""
        assert self.ended is not None
        return self.bytes_total / max(1e-6, self.ended - self.began)


def may_store_behind(config: Mapping[str, Any]) -> bool:
    """Return whether training may continue while a checkpoint is stored.

    The result is False only if `optimizations.asynchronous_checkpoints` of the configuration is
    False.
    """
    options = config.get("optimizations") or {}
    return options.get("asynchronous_checkpoints") is not False


class BackgroundSave:
    """Runs saves of checkpoints: `run` in the calling thread, `start` in a background thread.

    `wait` and `raise_failure` raise the error of a background save. `start` calls `wait` first; the
    caller of `run` must do so itself. `running` is the save in progress, or None.
    """

    def __init__(self) -> None:
        """Create an idle object without saves."""
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None
        self._is_abandoned = False
        self._stored: deque[Save] = deque(maxlen=MEASURED_MAX)
        self.running: Save | None = None

    @property
    def latest(self) -> Save | None:
        """The latest successful save of a known size. None before the first."""
        return self._stored[-1] if self._stored else None

    @property
    def bytes_per_second(self) -> float | None:
        """The lowest rate among the last three successful saves of known size. None before the
        first.
        """
        return min((save.bytes_per_second for save in self._stored), default=None)

    def run(self, save: Save, task: Callable[[], None]) -> None:
        """Run `task`, which stores the checkpoint of `save`, in the calling thread.

        Record in `save` the end, and the success if `task` returns. Pass on every exception of
        `task`. Neither wait for an earlier background save nor raise its error: call `wait` before.
        """
        self.running = save
        try:
            task()
            save.is_stored = True
        finally:
            self._end(save)

    def start(self, save: Save, task: Callable[[], None]) -> None:
        """Run `task`, which stores the checkpoint of `save`, in a new thread.

        First wait for the previous background save. If the previous save failed, raise the error
        and do not run `task`. After `abandon`, start without a wait. An Exception of `task` is kept
        for `wait` and `raise_failure`, but ignored after `abandon`.
        """
        self.wait()
        self.running = save
        self._thread = threading.Thread(
            target=self._run_in_thread, args=(save, task), name="checkpoint-save", daemon=True
        )
        self._thread.start()

    def wait(self) -> None:
        """Wait for the background save, if any, and raise the error of a failed save, once.

        After `abandon`, which gives up a save that cannot end in time, return at once. An error
        from before `abandon` is still raised then; a later error is ignored.
        """
        thread = self._thread
        if thread is not None and not self._is_abandoned:
            thread.join()
            self._thread = None
        self.raise_failure()

    def raise_failure(self) -> None:
        """Raise the error of a failed background save, once. Do nothing if no error is pending."""
        if self._failure is None:
            return
        failure, self._failure = self._failure, None
        raise failure

    def abandon(self) -> None:
        """Give up the background save, because the machine ends before the save could.

        The thread runs until the process ends, and `wait` no longer waits. Every later error of the
        background save is ignored. An earlier error is still raised.
        """
        self._is_abandoned = True

    def _run_in_thread(self, save: Save, task: Callable[[], None]) -> None:
        """Run a save as `run` does, and keep an Exception of `task` for `wait` and `raise_failure`.

        After `abandon`, discard the exception.
        """
        try:
            self.run(save, task)
        except Exception as error:
            if not self._is_abandoned:
                self._failure = error

    def _end(self, save: Save) -> None:
        """Record the end of a save. A successful save of a known size becomes `latest`."""
        save.ended = time.monotonic()
        if save.is_stored and save.bytes_total:
            self._stored.append(save)
        self.running = None
