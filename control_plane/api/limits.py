"""Limits on what a stranger can send: the size of a body and the host it is addressed to."""

from collections.abc import Iterable

from fastapi import Request
from starlette.types import Message, Scope

from control_plane.api.errors import ApiError, Code, invalid

BODY_BYTES_MAX = 2 * 1024 * 1024
"""Twice the agent's largest call, so that JSON's escapes never push an honest one over it."""


def bounded(request: Request, bytes_max: int) -> Request:
    """The same request with a body that ends with `too_large` behind `bytes_max` bytes.

    A body that announces its length is refused before a byte of it is read.

    Raises:
        ApiError: too_large, here or while the body is read; invalid for a senseless length.
    """
    announced = request.headers.get("content-length")
    if announced is not None:
        if not (announced.isascii() and announced.isdigit()):
            raise invalid("Content-Length", "must be a number of bytes")
        _check(int(announced[:20]), bytes_max)
    received = 0

    async def receive() -> Message:
        nonlocal received
        message = await request.receive()
        received += len(message.get("body", b""))
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


def _check(size: int, bytes_max: int) -> None:
    if size > bytes_max:
        raise ApiError(Code.TOO_LARGE, f"the body is larger than {bytes_max} bytes")
