"""A page of rows of one partition, in either direction, some of them left out."""

from collections.abc import Callable

from control_plane.api.pages import PageAsked, write_cursor
from control_plane.state.table import Row, StateTable

# Rows that one request looks at: a page may be short, or empty, and yet have a next one.
SCANNED_MAX = 5_000
_FIRST, _LAST = " ", "\x7f"


def scanned(
    table: StateTable,
    partition: str,
    asked: PageAsked,
    *,
    descending: bool = False,
    wanted: Callable[[Row], bool] = lambda row: True,
) -> tuple[list[Row], str | None]:
    """At most `asked.limit` wanted rows and the cursor of what follows them."""
    first, last = _FIRST, _LAST
    after = asked.after(partition, (str,))
    if after is not None:
        first, last = (first, str(after[0])) if descending else (f"{after[0]} ", last)
    kept: list[Row] = []
    looked_at = 0
    while True:
        page = table.query(partition, first, last, limit=asked.limit, descending=descending)
        for place, row in enumerate(page.rows, 1):
            looked_at += 1
            if wanted(row):
                kept.append(row)
            if len(kept) == asked.limit or looked_at == SCANNED_MAX:
                is_end = place == len(page.rows) and page.next_sort is None
                return kept, None if is_end else write_cursor(partition, (row.key.sort,))
        if page.next_sort is None:
            return kept, None
        first, last = (first, page.next_sort) if descending else (page.next_sort, last)


def all_rows(table: StateTable, partition: str, first: str, last: str) -> list[Row]:
    """Every row of a range that is known to be short."""
    rows: list[Row] = []
    start: str | None = first
    while start is not None:
        page = table.query(partition, start, last)
        rows.extend(page.rows)
        start = page.next_sort
    return rows
