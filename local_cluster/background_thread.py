"""The start and the stop of the threads of an embedded cluster."""

import threading
from abc import ABC, abstractmethod


class BackgroundThread(ABC):
    """A daemon thread that works from `start` to `stop`.

    A subclass works in `_run`, and returns from `_run` soon after the event `_stopped`.

    Args:
        name: the name of the thread.
        stop_seconds_max: the time for which a stop waits for the end of the thread, in seconds.
    """

    def __init__(self, name: str, stop_seconds_max: float) -> None:
        self._stop_seconds_max = stop_seconds_max
        self._woken = threading.Event()
        """Ends a pause of the thread. Also set by a stop."""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread. A thread starts only once."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread after the work that has begun, and wait at most `stop_seconds_max`.

        Return also if the thread still runs then. Do not wait if the thread was not started.
        """
        self._stopped.set()
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join(timeout=self._stop_seconds_max)

    @abstractmethod
    def _run(self) -> None:
        """Work until the thread is stopped."""
