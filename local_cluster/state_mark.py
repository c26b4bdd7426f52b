"""The mark by which a server detects that a person replaced the state by an older copy.

The state and a separate file contain the same number, which grows every minute, at a start and at a
stop. A state with a lower number than the file, or with another cluster's id, was put in place
later. A copy that is less than a minute old is not detected if the server was killed.

Each of several servers has a file of its own. A restart from a copy skips many numbers, so that no
other server's file has a higher number. Otherwise that server would restart the trials again.
"""

from contextlib import suppress

from control_plane.rows import cluster_rows
from control_plane.state.table import Conflict, Expect, Key, Put, StateTable, Unavailable
from local_cluster.home import HomeFolder

_MARK = Key(*cluster_rows.MARK.only_key)
_RECORD = "state-mark"
RESTART_STEP = 10_000_000
"""The numbers that a restart from a copy skips: one for each minute of 19 years."""
_TRIES_MAX = 20


class StateMark:
    """The mark of a cluster's state: a number in the state table and in a file of the data folder.

    The file also contains the cluster's id.

    Args:
        home: the folder with the file.
        table: the state table.
        cluster_id: the id of the cluster in the state table.
    """

    def __init__(self, home: HomeFolder, table: StateTable, cluster_id: str) -> None:
        self._home = home
        self._table = table
        self._cluster_id = cluster_id

    def is_older_copy(self) -> bool:
        """Return whether the state was replaced by an older copy of this cluster's state.

        The number in the state table is then lower than the number in the file. Return False for
        another cluster's state, and if the file is missing, unreadable or invalid. Raises
        TableError.
        """
        return not self.is_other_cluster() and self._read_record() > self._read_row()

    def is_other_cluster(self) -> bool:
        """Return whether the state was replaced by another cluster's state.

        The file then contains another cluster's id. Return False if the file is missing, unreadable
        or invalid.
        """
        found = self._home.read_record(_RECORD).get("cluster_id", self._cluster_id)
        return bool(found != self._cluster_id)

    def advance(self, step: int = 1) -> None:
        """Store the next number in the state table, then in the file with the cluster's id.

        The next number is by `step` greater than the larger of both current numbers. Raises
        TableError and OSError.
        """
        self.write_file(self.advance_state(step))

    def advance_state(self, step: int = 1) -> int:
        """Store the next number in the state table only, and return the number.

        The next number is by `step` greater than the larger of the numbers in the table and in the
        file. The caller writes the file later by `write_file`. Raises TableError.
        """
        for _ in range(_TRIES_MAX):
            stored = self._read_row()
            number = max(stored, self._read_record()) + step
            with suppress(Conflict):
                # Another server may advance the number at the same time.
                expect = stored or Expect.ABSENT
                self._table.commit((Put(_MARK, number, b"%d" % number, expect),))
                return number
        raise Unavailable("the mark of the state changes too fast")

    def write_file(self, number: int) -> None:
        """Store `number` in the file with the cluster's id, also if it is lower. Raises OSError."""
        self._home.write_record(_RECORD, {"cluster_id": self._cluster_id, "number": number})

    def _read_row(self) -> int:
        """Read the number in the state table; 0 if no number is stored. Raises TableError."""
        row = self._table.get(_MARK)
        return 0 if row is None else int(row.body)

    def _read_record(self) -> int:
        """Read the number in the file; 0 if the file is missing or invalid."""
        number = self._home.read_record(_RECORD).get("number")
        return number if isinstance(number, int) else 0
