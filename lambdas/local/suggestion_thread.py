"""The suggestions of an embedded cluster: a thread that makes them when a search asks."""

import logging
import threading

from control_plane.actors.suggestion_rows import SUGGESTIONS
from control_plane.state.table import Key, TableError
from control_plane.suggestions.suggester import Suggester

log = logging.getLogger(__name__)

# A row that nobody woke the thread for is found so soon, and a failure tried again.
LOOK_SECONDS = 1.0


class SuggestionThread:
    """Makes the suggestions that searches ask for, from `start` to `stop`."""

    def __init__(self, suggester: Suggester) -> None:
        self._suggester = suggester
        self._woken = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="suggesting", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the suggestion under way."""
        self._stopped.set()
        self._woken.set()
        self._thread.join(timeout=LOOK_SECONDS * 5)

    def wake_on_row(self, key: Key) -> None:
        """Wake the thread if a committed row asks for a suggestion."""
        if key.partition == SUGGESTIONS:
            self._woken.set()

    def _run(self) -> None:
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
                self._woken.wait(LOOK_SECONDS)
                self._woken.clear()
