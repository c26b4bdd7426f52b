"""Limits on what a stranger can send: the size of a body and its time, and the host it names."""

import asyncio
import re
import time
from collections.abc import Iterable

from fastapi import Request
from starlette.types import Message, Scope

from control_plane.api.errors import BodyError
from control_plane.errors import Code, RequestError, invalid

BODY_BYTES_MAX = 2 * 1024 * 1024
"""The default limit: twice the agent's largest call, whose JSON escapes may double it."""

BODY_SECONDS_MAX = 30.0
"""The time that a small body may take; a larger one has the time that this rate needs."""
BODY_BYTES_PER_SECOND = 16 * 1024

# The whole header is matched: what stands behind a name that is ours would be another's.
_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]*\]|[^:\[\]]*)(:[0-9]{0,5})?")


def limit_body(request: Request, bytes_max: int) -> Request:
    """A copy of the request with a body that ends with `too_large` behind `bytes_max` bytes, and
    with `unavailable` when it comes too slowly or not to its end: that may be for want of time on
    either side, and says nothing about what it holds.

    A body that announces its length is refused before a byte of it is read.

    Raises:
        BodyError: as said, here or while the body is read; invalid for a senseless length.
    """
    announced = request.headers.get("content-length")
    if announced is not None:
        if not (announced.isascii() and announced.isdigit()):
            raise BodyError(invalid("Content-Length", "must be a number of bytes"))
        _check_size(int(announced[:20]), bytes_max)
    received, is_complete = 0, False
    began_seconds = time.monotonic()

    async def receive() -> Message:
        nonlocal received, is_complete
        # After the body only the end of the connection is waited for, however long.
        deadline_seconds = began_seconds + BODY_SECONDS_MAX + received / BODY_BYTES_PER_SECOND
        left_seconds = None if is_complete else deadline_seconds - time.monotonic()
        try:
            message = await asyncio.wait_for(request.receive(), left_seconds)
        except TimeoutError:
            text = f"the body arrived too slowly: {received} bytes so far"
            raise BodyError(RequestError(Code.UNAVAILABLE, text)) from None
        if message["type"] == "http.disconnect" and not is_complete:
            text = f"the connection closed before the body was complete: {received} bytes so far"
            raise BodyError(RequestError(Code.UNAVAILABLE, text))
        received += len(message.get("body", b""))
        is_complete = not message.get("more_body", False)
        _check_size(received, bytes_max)
        return message

    return Request(request.scope, receive)


def is_host_allowed(scope: Scope, hosts: Iterable[str]) -> bool:
    """Whether there is exactly one Host header and it names one of `hosts`, with any port."""
    host_headers = [value for name, value in scope["headers"] if name == b"host"]
    if len(host_headers) != 1:
        return False
    host = _HOST.fullmatch(host_headers[0].decode("latin-1").lower())
    return host is not None and host["name"].removesuffix(".") in hosts


def has_ambiguous_length(scope: Scope) -> bool:
    """True for a request whose end a proxy before us may have seen elsewhere than we do."""
    names = {name for name, _ in scope["headers"]}
    return b"content-length" in names and b"transfer-encoding" in names


def _check_size(size: int, bytes_max: int) -> None:
    if size > bytes_max:
        text = f"the body is larger than {bytes_max} bytes"
        raise BodyError(RequestError(Code.TOO_LARGE, text))
