"""The rows of a table in Firestore as they are stored, for `python -m lambdas.dump`."""

from collections.abc import Iterator

from lambdas.clouds import StoredRow
from lambdas.gcp.state_tables import open_table

# Behind every character that a sort key has.
_END = "\U0010ffff"


def read_stored_rows(table: str, partition: str) -> Iterator[StoredRow]:
    """Read a partition of the table PROJECT/DATABASE, with the environment's credentials. Raises
    TableError.
    """
    with open_table(table) as opened:
        first: str | None = ""
        while first is not None:
            page = opened.query(partition, first, _END)
            for row in page.rows:
                yield StoredRow(row.key.sort, row.revision, row.due_ms, row.body)
            first = page.next_sort
