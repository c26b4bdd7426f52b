"""Reading of bodies that are late or incomplete."""

import asyncio

import pytest
from fastapi import Request
from starlette.types import Message

from control_plane.api.errors import BodyError
from control_plane.api.request_limits import limit_body
from control_plane.errors import Code

SCOPE = {"type": "http", "method": "POST", "path": "/", "headers": []}
PART: Message = {"type": "http.request", "body": b"{", "more_body": True}


def read_body(*messages: Message, seconds_max: float = 60.0) -> bytes:
    """Read a body from messages, after which no message arrives."""
    left = list(messages)

    async def receive() -> Message:
        if left:
            return left.pop(0)
        return await asyncio.Future[Message]()

    request = limit_body(Request(SCOPE, receive), 100, seconds_max=seconds_max)
    return asyncio.run(request.body())


def test_body_is_read_to_the_end() -> None:
    end: Message = {"type": "http.request", "body": b"}", "more_body": False}
    assert read_body(PART, end) == b"{}"


def test_incomplete_body_is_unavailable_and_not_invalid() -> None:
    """An agent would discard a call that is refused as invalid, so the code must be unavailable."""
    disconnect: Message = {"type": "http.disconnect"}
    for messages, seconds, text in (
        (
            (PART, disconnect),
            60,
            "the connection closed before the body was complete: 1 bytes so far",
        ),
        ((PART,), 0.01, "the body arrived too slowly: 1 bytes so far"),
    ):
        with pytest.raises(BodyError) as raised:
            read_body(*messages, seconds_max=seconds)
        assert (raised.value.error.code, raised.value.error.message) == (Code.UNAVAILABLE, text)
