"""The row of the relay, as the task of the relay writes the row.

The task may write the row and read nothing. A condition on the revision therefore tells the task
whether the row still belongs to the task.
"""

from collections.abc import Callable
from dataclasses import replace

from control_plane.access.relay_record import KEY, RelayRecord, encode_relay
from control_plane.state.table import Conflict, Put, StateTable, Unavailable


class RowLost(Exception):
    """The row belongs to another task, or to no task. This task must end."""


class OwnRow:
    """The relay's row of a task. Methods raise RowLost if another attempt has replaced the row.

    They raise Unavailable if the table does not answer, and may then be called again.

    Attributes:
        record: the record that was written last, or the record of the attempt.
    """

    def __init__(
        self, table: StateTable, record: RelayRecord, revision: int, now_ms: Callable[[], int]
    ) -> None:
        """Create the row of an attempt. Nothing is written yet.

        Args:
            table: the state table.
            record: the attempt.
            revision: the revision that the API gives the row when it names the task.
            now_ms: returns the time in epoch ms.
        """
        self.record = record
        self._table, self._now_ms = table, now_ms
        # A write without an answer may have been stored, so several revisions are possible.
        self._revisions = [revision]

    def announce(self, url: str, pin: str) -> None:
        """Write the address and the digest of the certificate."""
        self._write(replace(self.record, url=url, pin=pin))

    def renew(self) -> None:
        """Write that the task runs."""
        self._write(self.record)

    def end(self) -> None:
        """Write that the task ends, so that the next tunnel starts another task."""
        self._write(replace(self.record, has_ended=True))

    def _write(self, record: RelayRecord) -> None:
        """Write a record with the present time."""
        record = replace(record, seen_ms=self._now_ms())
        revision = self._revisions[-1] + 1
        for expected in self._revisions:
            try:
                self._table.commit((Put(KEY, revision, encode_relay(record), expected),))
            except Conflict:
                continue
            except Unavailable:
                self._revisions.append(revision)
                raise
            self.record, self._revisions = record, [revision]
            return
        raise RowLost("another attempt has replaced the row of this relay")
