"""Pages of a list: the parameters, the cursor and the answer."""

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar

from fastapi import Depends, Query

from control_plane.api.bodies import Body
from control_plane.api.errors import invalid

LIMIT_MAX = 500
LIMIT_DEFAULT = 100
CURSOR_CHARACTERS_MAX = 1024

Item = TypeVar("Item")
Row = TypeVar("Row")
Position = tuple[int | str, ...]


class Page(Body, Generic[Item]):
    """What a list route answers; `next_cursor` is null on the last page."""

    items: list[Item]
    next_cursor: str | None = None


@dataclass(frozen=True)
class PageAsked:
    """At most `limit` items behind `cursor`, or the first ones."""

    limit: int = LIMIT_DEFAULT
    cursor: str | None = None

    def after(self, kind: str, shape: Sequence[type[int] | type[str]]) -> Position | None:
        """The position of the last item seen, None on the first page.

        Raises:
            ApiError: invalid, for a cursor that this list did not give.
        """
        return None if self.cursor is None else read_cursor(self.cursor, kind, shape)


def _asked(
    limit: Annotated[int, Query(ge=1, le=LIMIT_MAX)] = LIMIT_DEFAULT,
    cursor: Annotated[str | None, Query(max_length=CURSOR_CHARACTERS_MAX)] = None,
) -> PageAsked:
    return PageAsked(limit, cursor)


PageParameters = Annotated[PageAsked, Depends(_asked)]
"""The type of a list handler's parameter that receives what page is asked for."""


def page(
    rows: Sequence[Row],
    asked: PageAsked,
    kind: str,
    *,
    item: Callable[[Row], Item],
    position: Callable[[Row], Position],
) -> Page[Item]:
    """One page of `rows`, of which the caller has read `limit + 1` to know whether more follow."""
    shown = rows[: asked.limit]
    more = len(rows) > len(shown)
    cursor = write_cursor(kind, position(shown[-1])) if more else None
    return Page(items=[item(row) for row in shown], next_cursor=cursor)


def write_cursor(kind: str, position: Position) -> str:
    """An opaque text; `kind` names the list, so that a cursor of another one is refused."""
    content = json.dumps([kind, *position], separators=(",", ":"))
    return base64.urlsafe_b64encode(content.encode()).decode().rstrip("=")


def read_cursor(text: str, kind: str, shape: Sequence[type[int] | type[str]]) -> Position:
    """What `write_cursor` was given, checked to have the types of `shape`.

    Raises:
        ApiError: invalid, for anything else.
    """
    refusal = invalid("cursor", "is none that this list gave", "start again without a cursor")
    try:
        padded = text.encode("ascii") + b"=" * (-len(text) % 4)
        content = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (ValueError, binascii.Error, RecursionError):
        raise refusal from None
    if not isinstance(content, list) or content[:1] != [kind]:
        raise refusal
    position = content[1:]
    if [type(value) for value in position] != list(shape):
        raise refusal
    return tuple(position)
