"""Limits on requests of strangers: size and time of the body, path, query and Host header."""

import asyncio
import ipaddress
import re
import time
from collections.abc import Collection
from urllib.parse import unquote_to_bytes

from fastapi import Request
from starlette.types import Message, Scope

from control_plane.api.errors import BodyError
from control_plane.api.json_requests import GatedRequest
from control_plane.errors import Code, RequestError, invalid

BODY_BYTES_MAX = 2 * 1024 * 1024
"""The default limit of a body. JSON escapes may double the size of a text of half the limit."""

BODY_SECONDS_MAX = 30.0
"""The default time that a body may take. Each received byte adds time at BODY_BYTES_PER_SECOND."""
BODY_BYTES_PER_SECOND = 16 * 1024

ANY_ADDRESS = "[address]"
"""An allowed host that stands for every IP address. No Host header can have this text.

The check of the host protects from names that a stranger lets point to this server. An IP address
is no name.
"""

# Matches the whole header, because text behind an allowed name would make a name of another host.
_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]*\]|[^:\[\]]*)(:[0-9]{0,5})?")


def limit_body(
    request: Request,
    bytes_max: int,
    *,
    has_lines: bool = False,
    seconds_max: float = BODY_SECONDS_MAX,
) -> Request:
    """Return a GatedRequest for the request, which limits the size and the time of the body.

    Reading the copy's body raises BodyError too_large after more than `bytes_max` bytes. It raises
    BodyError unavailable if the body is incomplete, or takes longer than `seconds_max` and the
    time for the received bytes at BODY_BYTES_PER_SECOND.

    Args:
        request: the request, which must not be read any more.
        bytes_max: the most bytes of the body.
        has_lines: whether the body has report lines of trials, as in `GatedRequest`.
        seconds_max: the time that the body may take, without the time for the received bytes.

    Raises:
        BodyError: too_large, if Content-Length is more than `bytes_max`; invalid, if Content-Length
            is not a number. No byte of the body is read before.
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
        # After the body, wait for the end of the connection without a limit.
        deadline_seconds = began_seconds + seconds_max + received / BODY_BYTES_PER_SECOND
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

    return GatedRequest(request.scope, receive, has_lines=has_lines)


def check_target(scope: Scope) -> None:
    """Check the encoded bytes in the path and the query of a request.

    Raises:
        RequestError: invalid, for a NUL character, or for bytes that are not UTF-8. The framework
            would decode bad bytes into other characters.
    """
    for place, raw in (("path", scope.get("raw_path")), ("query", scope["query_string"])):
        if not raw or b"%" not in raw:
            continue
        try:
            text = unquote_to_bytes(raw).decode()
        except UnicodeDecodeError:
            raise invalid(place, "is not UTF-8") from None
        if "\0" in text:
            raise invalid(place, "contains a NUL character")


def is_host_allowed(scope: Scope, hosts: Collection[str]) -> bool:
    """Return whether the request has a single Host header that names one of `hosts`.

    Any port is allowed. Upper case and a dot at the end of the name are accepted. `hosts` are in
    lower case, and ANY_ADDRESS among `hosts` allows every IP address.
    """
    host_headers = [value for name, value in scope["headers"] if name == b"host"]
    if len(host_headers) != 1:
        return False
    host = _HOST.fullmatch(host_headers[0].decode("latin-1").lower())
    if host is None:
        return False
    name = host["name"].removesuffix(".")
    return name in hosts or (ANY_ADDRESS in hosts and _is_address(name))


def _is_address(name: str) -> bool:
    """Return whether a host is an IP address. An IPv6 address has brackets."""
    try:
        ipaddress.ip_address(name[1:-1] if name.startswith("[") else name)
    except ValueError:
        return False
    return True


def has_ambiguous_length(scope: Scope) -> bool:
    """Return whether a request has both Content-Length and Transfer-Encoding headers.

    A proxy could see the end of the request at another place than this server.
    """
    names = {name for name, _ in scope["headers"]}
    return b"content-length" in names and b"transfer-encoding" in names


def _check_size(size: int, bytes_max: int) -> None:
    if size > bytes_max:
        text = f"the body is larger than {bytes_max} bytes"
        raise BodyError(RequestError(Code.TOO_LARGE, text))
