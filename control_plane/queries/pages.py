"""Pages of a list: what is asked for, the cursor, and the answer."""

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
    """One page of a list; `next_cursor` is null on the last page."""

    items: list[Item]
    next_cursor: str | None = None


@dataclass(frozen=True)
class PageRequest:
    """At most `limit` items behind `cursor`, or the first ones."""

    limit: int = 100
    cursor: str | None = None

    def start_after(
        self, list_name: str, shape: Sequence[type[int] | type[str]]
    ) -> Position | None:
        """The position that the cursor names: of the last item seen, None for the first page.

        Raises:
            RequestError: invalid, for a cursor that this list did not give.
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
    """One page of `rows`; the caller has read `limit + 1` rows, which shows whether more follow."""
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
    """One page of all `values`, which never change; `item` gets the place of each in them."""
    after = page.start_after(list_name, (int,))
    first = 0 if after is None else max(int(after[0]) + 1, 0)
    places = list(enumerate(values[first : first + page.limit + 1], first))
    return page_from_rows(
        places,
        page,
        list_name,
        item=lambda place: item(*place),
        position=lambda place: (place[0],),
    )


def encode_cursor(list_name: str, position: Position) -> str:
    """A position as opaque text, with the list's name, so that another list refuses it."""
    content = json.dumps([list_name, *position], separators=(",", ":"))
    return base64.urlsafe_b64encode(content.encode()).decode().rstrip("=")


def decode_cursor(text: str, list_name: str, shape: Sequence[type[int] | type[str]]) -> Position:
    """Decode a cursor of this list, whose position must have the types of `shape`.

    Raises:
        RequestError: invalid, for anything else.
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
    """Whether rows could have such a key: nothing but that comes from an item of a list."""
    if isinstance(value, int):
        return abs(value) <= _NUMBER_MAX
    return not _SURROGATE.search(value)
