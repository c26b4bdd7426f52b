"""The update times of rows that a process knows, by which Firestore checks their revisions."""

from collections import OrderedDict
from threading import Lock

from control_plane.state.table import Key

ROWS_MAX = 4096


class UpdateTimes:
    """The update times of the rows that were read or written last; safe for concurrent use by
    threads.
    """

    def __init__(self, rows_max: int = ROWS_MAX) -> None:
        self._rows_max = rows_max
        self._times: OrderedDict[Key, tuple[int, str]] = OrderedDict()
        self._lock = Lock()

    def find(self, key: Key, revision: int) -> str | None:
        """When the row got that revision, None if that is not known."""
        with self._lock:
            known = self._times.get(key)
            if known is None or known[0] != revision:
                return None
            self._times.move_to_end(key)
            return known[1]

    def remember(self, key: Key, revision: int, time: str) -> None:
        """Note when a row got its revision, and forget those that were not used the longest."""
        with self._lock:
            self._times[key] = revision, time
            self._times.move_to_end(key)
            while len(self._times) > self._rows_max:
                self._times.popitem(last=False)

    def forget(self, key: Key) -> None:
        """Forget the update time of a row."""
        with self._lock:
            self._times.pop(key, None)
