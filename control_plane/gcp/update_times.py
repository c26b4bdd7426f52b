"""A cache of the update times of rows, which Firestore compares in place of revisions."""

from collections import OrderedDict
from threading import Lock

from control_plane.state.table import Key

ROWS_MAX = 4096


class UpdateTimes:
    """The update times of the `rows_max` most recently used rows. Several threads may use it."""

    def __init__(self, rows_max: int = ROWS_MAX) -> None:
        self._rows_max = rows_max
        self._times: OrderedDict[Key, tuple[int, str]] = OrderedDict()
        self._lock = Lock()

    def find(self, key: Key, revision: int) -> str | None:
        """Return the update time of a row at `revision`, as Firestore's text, and mark the row as
        used.

        Return None if the row is unknown or was noted with another revision.
        """
        with self._lock:
            known = self._times.get(key)
            if known is None or known[0] != revision:
                return None
            self._times.move_to_end(key)
            return known[1]

    def remember(self, key: Key, revision: int, time: str) -> None:
        """Store the update time of a row at `revision`, replacing any other stored revision.

        Evict the least recently used rows above the limit.
        """
        with self._lock:
            self._times[key] = revision, time
            self._times.move_to_end(key)
            while len(self._times) > self._rows_max:
                self._times.popitem(last=False)

    def forget(self, key: Key) -> None:
        """Remove a row from the cache. An unknown row is not an error."""
        with self._lock:
            self._times.pop(key, None)
