"""Limits on what a stranger can send: the size of a body and the time it takes, and the host it is
addressed to.
"""

import asyncio
import time
from collections.abc import Iterable

from fastapi import Request
from starlette.types import Message, Scope

from control_plane.api.errors import ApiError, Code, invalid

BODY_BYTES_MAX = 2 * 1024 * 1024
"""Twice the agent's largest call, so that JSON's escapes never push an honest one over it."""

BODY_SECONDS_MAX = 30.0
"""For a small body; a larger one has time for this rate."""
BODY_BYTES_PER_SECOND = 16 * 1024


def bounded(request: Request, bytes_max: int) -> Request:
    """The same request with a body that ends with `too_large` behind `bytes_max` bytes, and with
    `invalid` when it comes too slowly.

    A body that announces its length is refused before a byte of it is read.

    Raises:
        ApiError: as said, here or while the body is read; invalid for a senseless length.
    """
    announced = request.headers.get("content-length")
    if announced is not None:
        if not (announced.isascii() and announced.isdigit()):
            raise invalid("Content-Length", "must be a number of bytes")
        _check(int(announced[:20]), bytes_max)
    received, is_complete = 0, False
    began_seconds = time.monotonic()

    async def receive() -> Message:
        nonlocal received, is_complete
        # Behind the body, what is waited for is the end of the connection.
        left = began_seconds + BODY_SECONDS_MAX + received / BODY_BYTES_PER_SECOND
        until = None if is_complete else left - time.monotonic()
        try:
            message = await asyncio.wait_for(request.receive(), until)
        except TimeoutError:
            raise invalid("", f"the body came too slowly: {received} bytes so far") from None
        received += len(message.get("body", b""))
        is_complete = not message.get("more_body", False)
        _check(received, bytes_max)
        return message

    return Request(request.scope, receive)


def host_is_ours(scope: Scope, hosts: Iterable[str]) -> bool:
    """True when exactly one Host header names one of `hosts`, whatever the port."""
    named = [value for name, value in scope["headers"] if name == b"host"]
    if len(named) != 1:
        return False
    host: str = named[0].decode("latin-1").lower()
    is_ipv6 = host.startswith("[")
    name = host.partition("]")[0] + "]" if is_ipv6 else host.partition(":")[0]
    return name.removesuffix(".") in hosts


def is_ambiguous(scope: Scope) -> bool:
    """True for a request whose end a proxy before us may have seen elsewhere than we do."""
    names = {name for name, _ in scope["headers"]}
    return b"content-length" in names and b"transfer-encoding" in names


def _check(size: int, bytes_max: int) -> None:
    if size > bytes_max:
        raise ApiError(Code.TOO_LARGE, f"the body is larger than {bytes_max} bytes")
