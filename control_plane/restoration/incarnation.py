"""The incarnation of a cluster's state. Each restore of an older copy starts a new incarnation.

Names from an earlier incarnation are used again if they were assigned after the copy was taken. For
example, allocation `7.2` of the old incarnation and allocation `7.2` of the new one are two runs.
So an agent deletes everything from another incarnation, and its calls are refused until then.
"""

from control_plane.rows import cluster_rows
from control_plane.state.table import Expect, Key, Put, StateTable

INCARNATION = Key(*cluster_rows.INCARNATION.only_key)
"""The row with the name of the current incarnation."""


def read_incarnation(table: StateTable, cluster_id: str) -> str:
    """Read the name of the current incarnation, which is `cluster_id` before the first restore."""
    row = table.get(INCARNATION)
    return cluster_id if row is None else row.body.decode()


def incarnation_write(name: str) -> Put:
    """Return the write that starts the incarnation `name`."""
    return Put(INCARNATION, 1, name.encode(), Expect.ANYTHING)
