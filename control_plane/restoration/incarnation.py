"""The incarnation of a cluster's state, which is another one after each restore of an older copy.

What was made in an earlier incarnation after the copy was taken bears names that are given again:
an allocation `7.2` of then and one of now are two runs. So an agent drops what it has of another
incarnation, and its calls are refused until it has.
"""

from control_plane.state.table import Expect, Key, Put, StateTable

INCARNATION = Key("cluster", "incarnation")


def read_incarnation(table: StateTable, cluster_id: str) -> str:
    """Read the name of the state's incarnation: the cluster's until the first restore."""
    row = table.get(INCARNATION)
    return cluster_id if row is None else row.body.decode()


def incarnation_write(name: str) -> Put:
    """The write that gives the state an incarnation."""
    return Put(INCARNATION, 1, name.encode(), Expect.ANYTHING)
