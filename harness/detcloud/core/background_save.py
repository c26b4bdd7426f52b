"""The saves of checkpoints: in the step or behind it, at most one at a time, each of them measured.

A thread behind the step is a daemon, so that a trial whose machine ends may leave an upload that
cannot be done in time; a trial that ends in its own time waits for it.
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
    """A checkpoint on its way into the store; `bytes_total` is 0 while nobody knows its size.

    Times are those of `time.monotonic`; `ended` is None until it is reported or has failed.
    """

    uuid: str
    bytes_total: int = 0
    began: float = field(default_factory=time.monotonic)
    ended: float | None = None
    is_stored: bool = False

    @property
    def bytes_per_second(self) -> float:
        """The rate at which a stored one was written, from its begin to its report."""
        assert self.ended is not None
        return self.bytes_total / max(1e-6, self.ended - self.began)


def may_store_behind(config: Mapping[str, Any]) -> bool:
    """Whether a configuration lets a loop train on while its checkpoint is stored."""
    options = config.get("optimizations") or {}
    return options.get("asynchronous_checkpoints") is not False


class BackgroundSave:
    """Runs one save after the other; the failure of one in the background is raised later."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None
        self._is_abandoned = False
        self._stored: deque[Save] = deque(maxlen=MEASURED_MAX)
        self.running: Save | None = None

    @property
    def latest(self) -> Save | None:
        """The latest save that was stored and reported."""
        return self._stored[-1] if self._stored else None

    @property
    def bytes_per_second(self) -> float | None:
        """The rate of the slowest of the last saves; None before the first."""
        return min((save.bytes_per_second for save in self._stored), default=None)

    def run(self, save: Save, task: Callable[[], None]) -> None:
        """Run the task here and now."""
        self.running = save
        try:
            task()
            save.is_stored = True
        finally:
            self._end(save)

    def start(self, save: Save, task: Callable[[], None]) -> None:
        """Run the task in a thread, once the one before it is done."""
        self.wait()
        self.running = save
        self._thread = threading.Thread(
            target=self._run_in_thread, args=(save, task), name="checkpoint-save", daemon=True
        )
        self._thread.start()

    def wait(self) -> None:
        """Wait for the save in the background, if any, and raise what it has failed with."""
        thread = self._thread
        if thread is not None and not self._is_abandoned:
            thread.join()
            self._thread = None
        self.raise_failure()

    def raise_failure(self) -> None:
        """Raise, once, what a save in the background has failed with; cheap where none has."""
        if self._failure is None:
            return
        failure, self._failure = self._failure, None
        raise failure

    def abandon(self) -> None:
        """Wait no more for the save in the background, which goes on until the process ends; what
        it fails with from now on is of no interest.
        """
        self._is_abandoned = True

    def _run_in_thread(self, save: Save, task: Callable[[], None]) -> None:
        try:
            self.run(save, task)
        except Exception as error:
            if not self._is_abandoned:
                self._failure = error

    def _end(self, save: Save) -> None:
        save.ended = time.monotonic()
        if save.is_stored and save.bytes_total:
            self._stored.append(save)
        self.running = None
