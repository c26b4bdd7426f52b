"""Pages of a list: the request, the cursor and the answer."""

import base64
import binascii
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from control_plane.errors import invalid
from control_plane.queries.answer import Answer

Item = TypeVar("Item")
Row = TypeVar("Row")

_NUMBER_MAX = 2**63 - 1
_SURROGATE = re.compile(r"[\ud800-\udfff]")

Position = tuple[int | str, ...]


class Page(Answer, Generic[Item]):
    """A page of a list.

    `next_cursor` requests the next page; null on the last page.
    """

    items: list[Item]
    next_cursor: str | None = None


@dataclass(frozen=True)
class PageRequest:
    """The requested page of a list."""

    limit: int = 100
    """The most items that the page may have."""
    cursor: str | None = None
    """The `next_cursor` of the previous page; None for the first page."""

    def start_after(
        self, list_name: str, shape: Sequence[type[int] | type[str]]
    ) -> Position | None:
        """Return the position of the last item of the previous page. Return None for the first
        page.

        Args:
            list_name: the name of the list; a cursor of another list is refused.
            shape: the types of the values in the list's positions.

        Raises:
            RequestError: invalid, if the cursor is not a cursor of this list.
        """
        return None if self.cursor is None else decode_cursor(self.cursor, list_name, shape)


def page_from_rows(
    rows: Sequence[Row],
    page: PageRequest,
    list_name: str,
    *,
    item: Callable[[Row], Item],
    position: Callable[[Row], Position],
) -> Page[Item]:
    """Build a page of the first `page.limit` of `rows`. The page is the last one without further
    rows.

    Args:
        rows: the rows after the cursor. The caller reads `page.limit + 1` rows: a row beyond the
            limit gives the page a cursor.
        page: the request; only its limit is used.
        list_name: the name of the list in cursors.
        item: converts a row to an item of the page.
        position: returns the position of a row in the list.
    """
    shown = rows[: page.limit]
    more = len(rows) > len(shown)
    cursor = encode_cursor(list_name, position(shown[-1])) if more else None
    return Page(items=[item(row) for row in shown], next_cursor=cursor)


def page_from_sequence(
    values: Sequence[Row],
    page: PageRequest,
    list_name: str,
    item: Callable[[int, Row], Item],
) -> Page[Item]:
    """Build the requested page of `values`, the whole list. The order must not change.

    A position behind the end gives an empty last page.

    Args:
        values: all values of the list.
        page: the request. Positions are indexes in `values`.
        list_name: the name of the list in cursors.
        item: converts the index and the value to an item of the page.

    Raises:
        RequestError: invalid, if the cursor is not a cursor of this list.
    """
    after = page.start_after(list_name, (int,))
    first = 0 if after is None else max(int(after[0]) + 1, 0)
    numbered = list(enumerate(values[first : first + page.limit + 1], first))
    return page_from_rows(
        numbered,
        page,
        list_name,
        item=lambda pair: item(*pair),
        position=lambda pair: (pair[0],),
    )


def encode_cursor(list_name: str, position: Position) -> str:
    """Encode a position and the list's name as opaque text. Other lists refuse the cursor."""
    content = json.dumps([list_name, *position], separators=(",", ":"))
    return base64.urlsafe_b64encode(content.encode()).decode().rstrip("=")


def decode_cursor(text: str, list_name: str, shape: Sequence[type[int] | type[str]]) -> Position:
    """Decode a cursor of the list; return the position.

    Raises:
        RequestError: invalid, if the text is not a cursor, belongs to another list, or holds values
            whose types are not those of `shape`.
    """
    refusal = invalid(
        "cursor", "is not one that this list returned", "start again without a cursor"
    )
    try:
        padded = text.encode("ascii") + b"=" * (-len(text) % 4)
        content = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (ValueError, binascii.Error, RecursionError):
        raise refusal from None
    if not isinstance(content, list) or content[:1] != [list_name]:
        raise refusal
    position = content[1:]
    if [type(value) for value in position] != list(shape) or not all(map(_is_storable, position)):
        raise refusal
    return tuple(position)


def _is_storable(value: int | str) -> bool:
    """Return whether a row key can hold the value: an integer from -(2^63 - 1) to 2^63 - 1, or text
    without surrogates.
    """
    if isinstance(value, int):
        return abs(value) <= _NUMBER_MAX
    return not _SURROGATE.search(value)
