"""Keys of the rows in `collections`, which say what the checkpoint collector has to do."""

COLLECTIONS = "collections"
REMOVALS = "files/"


def removal_sort_key(experiment_id: int, uuid: str) -> str:
    """The sort key of the row that asks for the files of a checkpoint to be removed."""
    return f"{REMOVALS}{experiment_id:012d}/{uuid}"
