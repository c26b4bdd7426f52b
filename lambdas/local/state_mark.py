"""The mark by which a server notices that its state is an older copy which somebody put back.

A number in the state and in a file beside it grows each minute, at a start and at a stop. A state
whose number is below the file's, or that is another cluster's, has been replaced. A copy that is
less than a minute old passes unnoticed where the server was killed meanwhile.
"""

from control_plane.state.table import Expect, Key, Put, StateTable
from lambdas.local.home import HomeFolder

_MARK = Key("cluster", "mark")
_RECORD = "state-mark"


class StateMark:
    """The mark of the state in `home`, whose cluster is `cluster_id`."""

    def __init__(self, home: HomeFolder, table: StateTable, cluster_id: str) -> None:
        self._home = home
        self._table = table
        self._cluster_id = cluster_id

    def is_older_copy(self) -> bool:
        """Whether the state was replaced by an older copy."""
        return not self.is_other_cluster() and self._read_record() > self._read_row()

    def is_other_cluster(self) -> bool:
        """Whether the state was replaced by another cluster's."""
        found = self._home.read_record(_RECORD).get("cluster_id", self._cluster_id)
        return bool(found != self._cluster_id)

    def advance(self) -> None:
        """Raise the number in the state, and then in the file."""
        number = max(self._read_row(), self._read_record()) + 1
        self._table.commit((Put(_MARK, number, b"%d" % number, Expect.ANYTHING),))
        self._home.write_record(_RECORD, {"cluster_id": self._cluster_id, "number": number})

    def _read_row(self) -> int:
        row = self._table.get(_MARK)
        return 0 if row is None else int(row.body)

    def _read_record(self) -> int:
        number = self._home.read_record(_RECORD).get("number")
        return number if isinstance(number, int) else 0
