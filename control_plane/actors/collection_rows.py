"""Keys of the rows in `collections`, which are the tasks of the checkpoint collector."""

from control_plane.rows.experiment_rows import COLLECTION, REMOVAL

COLLECTIONS = COLLECTION.partition
REMOVALS = REMOVAL.sort
"""The prefix of the sort keys of rows that request the removal of a checkpoint's files."""


def removal_sort_key(experiment_id: int, uuid: str) -> str:
    """Return the sort key of the row that requests the removal of a checkpoint's files."""
    return f"{REMOVALS}{experiment_id:012d}/{uuid}"
