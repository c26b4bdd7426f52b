"""The sessions of uploads in parts that a store knows by a name of its own giving, as rows of the
trial; they go with it.
"""

import hashlib
from collections.abc import Iterator

from pydantic_core import from_json, to_json

from control_plane.actors import addresses
from control_plane.checkpoint_gc.checkpoint_inventory import read_rows
from control_plane.state.table import Conflict, Delete, Expect, Expected, Key, Put, StateTable

# The folder of what users uploaded stands for no run.
UPLOADS_EPOCH = 0
# How the sort keys of these rows begin, in the partition of the trial.
UPLOAD_SESSIONS = "S#"


def trial_sessions(table: StateTable, trial_id: int) -> Iterator[tuple[Key, str, str]]:
    """Yield the row's key, the upload's UUID and the session of each session of a trial."""
    for row in read_rows(table, addresses.trial(trial_id), UPLOAD_SESSIONS, f"{UPLOAD_SESSIONS}~"):
        uuid = row.key.sort.removeprefix(UPLOAD_SESSIONS).partition("#")[0]
        yield row.key, uuid, str(from_json(row.body)["session"])


class UploadSessions:
    """The SessionMemory of one file of an upload."""

    def __init__(self, table: StateTable, trial_id: int, uuid: str, path: str) -> None:
        self._table = table
        digest = hashlib.sha256(path.encode()).hexdigest()[:32]
        self._key = Key(addresses.trial(trial_id), f"{UPLOAD_SESSIONS}{uuid}#{digest}")

    def find(self) -> str | None:
        """The session that is kept."""
        return self._find()[1]

    def keep(self, session: str, instead_of: str | None) -> str:
        """Keep a session unless another one was kept meanwhile; the one that is kept then."""
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
        """Keep none any more."""
        self._table.commit((Delete(self._key, Expect.ANYTHING),))

    def _find(self) -> tuple[int, str | None]:
        """The revision of the row, 0 without one, and its session."""
        row = self._table.get(self._key)
        return (0, None) if row is None else (row.revision, str(from_json(row.body)["session"]))
