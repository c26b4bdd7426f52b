import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.errors import RequestError
from control_plane.queries.pages import (
    Page,
    PageRequest,
    decode_cursor,
    encode_cursor,
    page_from_rows,
)


def pages_of(rows: list[int], limit: int) -> list[list[int]]:
    """Return all pages of a list, read by cursors as a client does."""
    pages: list[list[int]] = []
    cursor = None
    while True:
        request = PageRequest(limit, cursor)
        after = request.start_after("numbers", [int])
        left = [row for row in rows if after is None or row > int(after[0])]
        answer: Page[int] = page_from_rows(
            left[: limit + 1], request, "numbers", item=lambda row: row, position=lambda row: (row,)
        )
        pages.append(answer.items)
        cursor = answer.next_cursor
        if cursor is None:
            return pages


def test_cursors_reach_every_item() -> None:
    assert pages_of([1, 2, 3, 4, 5], 2) == [[1, 2], [3, 4], [5]]


def test_full_last_page_has_no_cursor() -> None:
    assert pages_of([1, 2, 3, 4], 2) == [[1, 2], [3, 4]]


def test_empty_list_is_one_empty_page() -> None:
    assert pages_of([], 2) == [[]]


@given(st.lists(st.integers(-(2**63) + 1, 2**63 - 1) | st.text(), max_size=4))
def test_cursor_round_trips_position(values: list[int | str]) -> None:
    cursor = encode_cursor("k", tuple(values))
    assert decode_cursor(cursor, "k", [type(value) for value in values]) == tuple(values)
    assert cursor.isascii()
    assert not set(cursor) & set("=&?+/ ")


@given(st.text())
def test_rejects_malformed_cursors(text: str) -> None:
    with pytest.raises(RequestError, match="cursor"):
        decode_cursor(text, "k", [int])


@pytest.mark.parametrize(
    "content",
    [["other", 1], ["k"], ["k", "1"], ["k", 1, 2], ["k", True], ["k", None], {"k": 1}, "k", []],
)
def test_rejects_cursor_of_a_different_shape(content: object) -> None:
    text = base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")
    with pytest.raises(RequestError, match="cursor"):
        decode_cursor(text, "k", [int])


@pytest.mark.parametrize("value", ["\ud800", "a\udfffb", 2**63, -(2**70), 10**400])
def test_rejects_unstorable_position(value: int | str) -> None:
    with pytest.raises(RequestError, match="cursor"):
        decode_cursor(encode_cursor("k", (value,)), "k", [type(value)])
