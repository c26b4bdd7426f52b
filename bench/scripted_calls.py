"""Calls of scripted agents and users, each on a new connection, in an event loop."""

import asyncio
import json
from typing import Any
from urllib.parse import urlsplit


class CallFailed(Exception):
    """The server did not answer with success."""


async def call_api(url: str, method: str, path: str, token: str, body: object = None) -> Any:
    """Make a call on a new connection, and return the parsed answer. Raise CallFailed."""
    place = urlsplit(url)
    content = b"" if body is None else json.dumps(body).encode()
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: {place.netloc}\r\n"
        f"Authorization: Bearer {token}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    )
    try:
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        try:
            writer.write(head.encode() + content)
            answer = await reader.read()
        finally:
            writer.close()
    except OSError as error:
        raise CallFailed(str(error)) from error
    status, _, rest = answer.partition(b"\r\n")
    if b" 200 " not in status:
        raise CallFailed(answer[:200].decode(errors="replace"))
    return json.loads(rest.partition(b"\r\n\r\n")[2])
