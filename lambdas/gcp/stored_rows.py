"""Reading of the stored rows of a table in Firestore, for `python -m lambdas.dump`."""

from collections.abc import Iterator

from control_plane.state.row_ranges import read_rows
from lambdas.clouds import StoredRow
from lambdas.gcp.state_tables import open_table

# Greater than every sort key.
_END = "\U0010ffff"


def read_stored_rows(table: str, partition: str) -> Iterator[StoredRow]:
    """Yield the rows of a partition by sort key, with the environment's credentials.

    Yield nothing for an empty partition. Raises TableError during the iteration if the table cannot
    be opened or read.

    Args:
        table: the name PROJECT/DATABASE.
    """
    with open_table(table) as opened:
        for row in read_rows(opened, partition, "", _END):
            yield StoredRow(row.key.sort, row.revision, row.due_ms, row.body)
