"""The suggestions of an embedded cluster: a thread that makes them as they are asked for."""

import logging
import threading

from control_plane.actors.experiment_suggestions import SUGGESTIONS
from control_plane.state.table import Key, TableError
from control_plane.suggestions.suggester import Suggester

log = logging.getLogger(__name__)

# How soon a row is found that nobody told of, and a failure is tried again.
LOOK_SECONDS = 1.0


class Suggesting:
    """Makes suggestions from `start` to `stop`."""

    def __init__(self, suggester: Suggester) -> None:
        self._suggester = suggester
        self._woken = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="suggesting", daemon=True)

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def stop(self) -> None:
        """Ends after the suggestion under way."""
        self._stopped.set()
        self._woken.set()
        self._thread.join(timeout=LOOK_SECONDS * 5)

    def row_written(self, key: Key) -> None:
        """Hears of a row that was committed; what it asks for is done in the thread."""
        if key.partition == SUGGESTIONS:
            self._woken.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                more = self._suggester.suggest()
            except TableError as error:
                log.warning("no suggestions now: %s", error)
                more = False
            except Exception:
                log.exception("the suggestions failed")
                more = False
            if not more:
                self._woken.wait(LOOK_SECONDS)
                self._woken.clear()
