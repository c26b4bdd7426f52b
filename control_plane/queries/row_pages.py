"""Reads of a page of filtered rows of a partition."""

from collections.abc import Callable

from control_plane.queries.pages import PageRequest, encode_cursor
from control_plane.state.table import Row, StateTable

# The most rows that a request reads. A page with a cursor may therefore be short or empty.
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
    """Read at most `request.limit` rows for which `is_wanted` is true.

    Args:
        table: the state table.
        partition: the partition of the rows, and the name of the list in cursors.
        request: the requested page.
        descending: read the last row first.
        is_wanted: selects rows; the default selects every row.

    Returns:
        The rows, and the cursor of the next page, or None at the end of the partition. Reading
        stops after SCANNED_MAX rows, so that a page with a cursor may be short or empty.

    Raises:
        RequestError: invalid, if the request's cursor does not belong to this partition.
    """
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
        # The filter rejects most rows, so that larger queries finish with fewer calls.
        size = min(2 * size, _PAGE_ROWS_MAX)
