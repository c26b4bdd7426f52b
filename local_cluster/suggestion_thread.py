"""The thread of an embedded cluster that computes suggestions at the request of a search."""

import logging
import threading

from control_plane.rows.experiment_rows import SUGGESTION
from control_plane.state.table import Key, TableError
from control_plane.suggestions.suggester import Suggester

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""The default interval at which the thread looks for requests without being woken, and retries
failures.
"""
STOP_SECONDS_MAX = 5.0


class SuggestionThread:
    """A thread that computes the suggestions that searches request, from `start` to `stop`.

    Errors are logged, and the thread tries again after `look_seconds`.
    """

    def __init__(self, suggester: Suggester, look_seconds: float = LOOK_SECONDS) -> None:
        self._suggester = suggester
        self._look_seconds = look_seconds
        self._woken = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="suggesting", daemon=True)

    def start(self) -> None:
        """Start the thread. A thread starts only once."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread after the current pass, and wait at most 5 s for the end.

        Return also if the thread still runs then. Do not wait if the thread was not started.
        """
        self._stopped.set()
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join(timeout=STOP_SECONDS_MAX)

    def wake_on_row(self, key: Key) -> None:
        """Wake the thread if a row with this key requests a suggestion. Otherwise do nothing.

        The engine calls this method for each row that it commits.
        """
        if key.partition == SUGGESTION.partition:
            self._woken.set()

    def _run(self) -> None:
        """Answer requests until the thread is stopped, without a pause while answers are sent."""
        while not self._stopped.is_set():
            try:
                has_more = self._suggester.suggest_all()
            except TableError as error:
                log.warning("no suggestions available now: %s", error)
                has_more = False
            except Exception:
                log.exception("computing suggestions failed")
                has_more = False
            if not has_more:
                self._woken.wait(self._look_seconds)
                self._woken.clear()
