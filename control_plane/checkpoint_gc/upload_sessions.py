"""The sessions of uploads in parts, for stores that name uploads themselves.

A session is a row in the partition of the trial and is deleted with the trial.
"""

import hashlib
from collections.abc import Iterator

from pydantic_core import from_json, to_json

from control_plane.actors import addresses
from control_plane.rows import trial_rows
from control_plane.state.row_ranges import read_rows
from control_plane.state.table import Conflict, Delete, Expect, Expected, Key, Put, StateTable

# The epoch in the paths of checkpoints that users uploaded: no run has this epoch.
UPLOADS_EPOCH = 0
# The prefix of the sort keys of session rows, in the partition of the trial.
UPLOAD_SESSIONS = trial_rows.UPLOAD_SESSION.sort


def trial_sessions(table: StateTable, trial_id: int) -> Iterator[tuple[Key, str, str]]:
    """Yield each upload session of a trial: the key of the row, the upload's UUID, and the session.

    Raises TableError.
    """
    for row in read_rows(table, addresses.trial(trial_id), UPLOAD_SESSIONS, f"{UPLOAD_SESSIONS}~"):
        uuid = row.key.sort.removeprefix(UPLOAD_SESSIONS).partition("#")[0]
        yield row.key, uuid, str(from_json(row.body)["session"])


class UploadSessions:
    """The SessionMemory of a single file of an upload, in a row of the state table.

    Every method raises TableError.
    """

    def __init__(self, table: StateTable, trial_id: int, uuid: str, path: str) -> None:
        self._table = table
        digest = hashlib.sha256(path.encode()).hexdigest()[:32]
        self._key = Key(addresses.trial(trial_id), f"{UPLOAD_SESSIONS}{uuid}#{digest}")

    def find(self) -> str | None:
        """Return the stored session, or None without a row."""
        return self._find()[1]

    def keep(self, session: str, instead_of: str | None) -> str:
        """Store `session`, unless another session was stored meanwhile; return the stored session.

        `instead_of` is the session to replace, or None. If the row has any other session, change
        nothing and return that session. If another process deletes the row meanwhile, `session` may
        be returned without being stored.
        """
        revision, kept = self._find()
        if kept is not None and kept != instead_of:
            return kept
        expect: Expected = revision if revision else Expect.ABSENT
        try:
            body = to_json({"session": session})
            self._table.commit((Put(self._key, revision + 1, body, expect),))
        except Conflict:
            return self.find() or session
        return session

    def forget(self) -> None:
        """Delete the stored session. A missing row is not an error."""
        self._table.commit((Delete(self._key, Expect.ANYTHING),))

    def _find(self) -> tuple[int, str | None]:
        """Return the revision of the row and the stored session: 0 and None without a row."""
        row = self._table.get(self._key)
        return (0, None) if row is None else (row.revision, str(from_json(row.body)["session"]))
