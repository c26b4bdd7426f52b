"""Reading of all rows of a range of sort keys."""

from collections.abc import Iterator

from control_plane.state.table import Row, StateTable


def read_rows(
    table: StateTable,
    partition: str,
    first: str = " ",
    last: str = "\x7f",
    *,
    page_rows: int = 1000,
) -> Iterator[Row]:
    """Yield the rows of a partition with `first` <= sort key < `last`, in ascending order.

    A page is read when the iteration reaches the page. Raises TableError.

    Args:
        page_rows: the most rows of a page.
    """
    start: str | None = first
    while start is not None:
        page = table.query(partition, start, last, limit=page_rows)
        yield from page.rows
        start = page.next_sort
