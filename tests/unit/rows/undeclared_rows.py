"""The check that stored rows are declared."""

from collections.abc import Iterable, Iterator, Sequence

from control_plane.rows.registry import find_row_type
from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import Put, Row, Write


class DeclaredRowsTable(SqliteTable):
    """A table that fails commits of rows without a declaration."""

    def commit(self, writes: Sequence[Write]) -> None:
        """Commit writes. Raises AssertionError for a row that `find_undeclared` yields."""
        undeclared = list(find_undeclared(write for write in writes if isinstance(write, Put)))
        assert not undeclared, undeclared
        super().commit(writes)


def find_undeclared(rows: Iterable[Row | Put]) -> Iterator[str]:
    """Yield a line for each row that is not declared, or is due or expires without declaration."""
    for row in rows:
        partition, sort = row.key
        row_type = find_row_type(partition, sort)
        if row_type is None:
            yield f"{partition} / {sort} is not declared in control_plane/rows"
        elif row.due_ms is not None and not (row_type.due or row_type.expiry):
            yield f"{partition} / {sort} is due, but {row_type.name} declares no time"
        elif row.expires and not row_type.expiry:
            yield f"{partition} / {sort} expires, but {row_type.name} does not"
