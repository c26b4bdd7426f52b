"""Requests to an ASGI application sent byte for byte, and the answers."""

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from starlette.types import ASGIApp, Message

HOST = "detcloud.test"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes
    bytes_taken: int
    """The number of bytes of the body that the application has read."""

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The code of an error answer."""
        return str(self.json["error"]["code"])


def call(
    app: ASGIApp,
    method: str,
    target: str,
    *,
    token: str | None = None,
    headers: Iterable[tuple[str, str]] = (),
    body: bytes | Iterable[bytes] = b"",
    content: object = None,
    hangs_up: bool = False,
) -> Answer:
    """Send a request and return the complete answer.

    Args:
        app: the application.
        method: the verb.
        target: the raw path with its query, sent unchanged.
        token: a bearer token.
        headers: further headers; a Host header replaces the default host.
        body: one block, or blocks as a chunked body.
        content: a value to send as JSON instead of `body`.
        hangs_up: whether the client disconnects before the body is complete.
    """
    if content is not None:
        body = json.dumps(content).encode()
        headers = [*headers, ("content-type", "application/json")]
    blocks = [body] if isinstance(body, bytes) else list(body)
    sent = [(name.lower(), value) for name, value in headers]
    if all(name != "host" for name, _ in sent):
        sent.append(("host", f"{HOST}:8080"))
    if token is not None:
        sent.append(("authorization", f"Bearer {token}"))
    if isinstance(body, bytes) and body and all(name != "content-length" for name, _ in sent):
        sent.append(("content-length", str(len(body))))
    return asyncio.run(exchange(app, method, target, sent, blocks, hangs_up))


async def exchange(
    app: ASGIApp,
    method: str,
    target: str,
    headers: Iterable[tuple[str, str]],
    blocks: Iterable[bytes] = (),
    hangs_up: bool = False,
    client: tuple[str, int] = ("203.0.113.1", 5000),
) -> Answer:
    """Send a request without additional headers, and return the answer."""
    raw_path, _, query = target.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(raw_path),
        "raw_path": raw_path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers],
        "client": client,
        "server": ("127.0.0.1", 8080),
    }
    messages: list[Message] = []
    pending = list(blocks)
    taken = 0

    async def receive() -> Message:
        nonlocal taken
        if not pending:
            if not hangs_up:
                await asyncio.Event().wait()
            return {"type": "http.disconnect"}
        block = pending.pop(0)
        taken += len(block)
        return {"type": "http.request", "body": block, "more_body": bool(pending) or hangs_up}

    async def send(message: Message) -> None:
        messages.append(message)

    await app(scope, receive, send)
    start, *rest = messages
    body = b"".join(message.get("body", b"") for message in rest)
    named = {name.decode(): value.decode("latin-1") for name, value in start["headers"]}
    return Answer(start["status"], named, body, taken)
