"""Reading rows of one partition: a page of those that fit a filter, or all of a short range."""

from collections.abc import Callable

from control_plane.queries.pages import PageRequest, encode_cursor
from control_plane.state.table import Row, StateTable

# Rows that one request reads: a page may be short, or empty, and yet have a next one.
SCANNED_MAX = 5_000
_PAGE_ROWS_MAX = 1_000
_FIRST, _LAST = " ", "\x7f"


def read_row_page(
    table: StateTable,
    partition: str,
    request: PageRequest,
    *,
    descending: bool = False,
    is_wanted: Callable[[Row], bool] = lambda row: True,
) -> tuple[list[Row], str | None]:
    """Read at most `request.limit` wanted rows, and return them with the cursor of those after."""
    first, last = _FIRST, _LAST
    after = request.start_after(partition, (str,))
    if after is not None:
        first, last = (first, str(after[0])) if descending else (f"{after[0]} ", last)
    rows: list[Row] = []
    rows_read, size = 0, request.limit
    while True:
        page = table.query(partition, first, last, limit=size, descending=descending)
        for place, row in enumerate(page.rows, 1):
            rows_read += 1
            if is_wanted(row):
                rows.append(row)
            if len(rows) == request.limit or rows_read == SCANNED_MAX:
                is_end = place == len(page.rows) and page.next_sort is None
                return rows, None if is_end else encode_cursor(partition, (row.key.sort,))
        if page.next_sort is None:
            return rows, None
        first, last = (first, page.next_sort) if descending else (page.next_sort, last)
        # Few rows are wanted: more of them at once, up to what a query has room for.
        size = min(2 * size, _PAGE_ROWS_MAX)


def read_rows(table: StateTable, partition: str, first: str, last: str) -> list[Row]:
    """Read every row of a range that is known to be short."""
    rows: list[Row] = []
    start: str | None = first
    while start is not None:
        page = table.query(partition, start, last)
        rows.extend(page.rows)
        start = page.next_sort
    return rows
