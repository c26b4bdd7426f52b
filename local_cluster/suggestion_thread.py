"""The thread of an embedded cluster that computes suggestions at the request of a search."""

import logging
from collections.abc import Callable

from control_plane.rows.experiment_rows import SUGGESTION
from control_plane.state.table import Key, TableError
from control_plane.suggestions.suggester import Suggester
from local_cluster.background_thread import BackgroundThread

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""The default interval at which the thread looks for requests without being woken, and retries
failures.
"""
STOP_SECONDS_MAX = 5.0


class SuggestionThread(BackgroundThread):
    """A thread that computes the suggestions that searches request, from `start` to `stop`.

    Errors are logged, and the thread tries again after `look_seconds`.

    Attributes:
        is_on_duty: returns whether this server, of several servers, computes suggestions.
    """

    def __init__(self, suggester: Suggester, look_seconds: float = LOOK_SECONDS) -> None:
        super().__init__("suggesting", STOP_SECONDS_MAX)
        self._suggester = suggester
        self._look_seconds = look_seconds
        self.is_on_duty: Callable[[], bool] = lambda: True

    def wake(self) -> None:
        """Let the thread look for requests now."""
        self._woken.set()

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
                has_more = self.is_on_duty() and self._suggester.suggest_all()
            except TableError as error:
                log.warning("no suggestions available now: %s", error)
                has_more = False
            except Exception:
                log.exception("computing suggestions failed")
                has_more = False
            if not has_more:
                self._woken.wait(self._look_seconds)
                self._woken.clear()
