"""The id of a cluster in the state table."""

import uuid
from contextlib import suppress

from control_plane.rows import cluster_rows
from control_plane.state.table import Conflict, Expect, Key, Put, StateTable

_CLUSTER_ID = Key(*cluster_rows.CLUSTER_ID.only_key)


def read_cluster_id(table: StateTable) -> str | None:
    """Read the id of the cluster that a state table belongs to.

    Return None if no server has used the table yet. Raises TableError.
    """
    row = table.get(_CLUSTER_ID)
    return None if row is None else row.body.decode()


def load_or_create_cluster_id(table: StateTable) -> str:
    """Return the id of the cluster. Store a random id in a new table. Raises TableError."""
    known = read_cluster_id(table)
    if known is not None:
        return known
    cluster_id = str(uuid.uuid4())
    with suppress(Conflict):
        table.commit((Put(_CLUSTER_ID, 1, cluster_id.encode(), Expect.ABSENT),))
    # Another server may have been faster.
    return read_cluster_id(table) or cluster_id
