"""The HTTP request that begins a connection to the relay. No I/O.

`h11` parses HTTP, as in the API's server.
"""

from dataclasses import dataclass

import h11

from detcloud.shared.tunnel.relay_link import PATH
from detcloud.shared.tunnel.websocket import accept_key

HEALTH_PATH = "/health"


@dataclass(frozen=True)
class Upgrade:
    """A complete request for a WebSocket."""

    key: str
    """The client's `Sec-WebSocket-Key`."""
    ticket: str
    rest: bytes
    """The bytes that arrived after the request."""


@dataclass(frozen=True)
class Refusal:
    """The answer to a request that begins no WebSocket."""

    status: int
    reason: str


class UpgradeReader:
    """A parser of the request of a connection."""

    def __init__(self, head_bytes_max: int) -> None:
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=head_bytes_max)

    def feed(self, received: bytes) -> Upgrade | Refusal | None:
        """Add received bytes. Return None until the request is complete or invalid."""
        self._http.receive_data(received)
        try:
            event = self._http.next_event()
        except h11.RemoteProtocolError as error:
            return Refusal(error.error_status_hint, "the request is not valid HTTP")
        if event is h11.NEED_DATA:
            return None
        if not isinstance(event, h11.Request):
            return Refusal(400, "the request has no head")
        return self._check_request(event)

    def _check_request(self, request: h11.Request) -> Upgrade | Refusal:
        """Return the fields of a request for a WebSocket, or the reason to refuse the request."""
        headers = {name.decode("ascii"): text for name, text in request.headers}
        path = request.target.partition(b"?")[0].decode("ascii", "replace")
        if request.method != b"GET":
            return Refusal(405, f"the relay answers GET {PATH}")
        if path == HEALTH_PATH:
            return Refusal(200, "the relay runs")
        if path != PATH:
            return Refusal(404, f"the relay answers GET {PATH}")
        if headers.get("upgrade", b"").lower() != b"websocket" or b"upgrade" not in _words(
            headers.get("connection", b"")
        ):
            return Refusal(426, "the request asks for no WebSocket")
        if headers.get("sec-websocket-version") != b"13":
            return Refusal(426, "the relay uses version 13 of WebSocket")
        key = headers.get("sec-websocket-key", b"")
        scheme, _, ticket = headers.get("authorization", b"").partition(b" ")
        if not key or len(key) > 64 or scheme.lower() != b"bearer" or not ticket.strip():
            return Refusal(401, "the request has no WebSocket key, or no ticket as bearer token")
        rest = bytes(self._http.trailing_data[0])
        return Upgrade(key.decode("latin-1"), ticket.strip().decode("latin-1"), rest)


def encode_acceptance(key: str) -> bytes:
    """Return the answer that begins the WebSocket."""
    lines = (
        "HTTP/1.1 101 Switching Protocols",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Accept: {accept_key(key)}",
        "",
        "",
    )
    return "\r\n".join(lines).encode("ascii")


def encode_refusal(refusal: Refusal) -> bytes:
    """Return the answer to another request. The reason contains no text of the client."""
    body = f"{refusal.reason}\n".encode()
    lines = (
        f"HTTP/1.1 {refusal.status} {'OK' if refusal.status == 200 else 'Refused'}",
        f"Detcloud-Reason: {refusal.reason}",
        "Content-Type: text/plain; charset=utf-8",
        f"Content-Length: {len(body)}",
        "Connection: close",
        "",
        "",
    )
    return "\r\n".join(lines).encode("ascii") + body


def _words(header: bytes) -> set[bytes]:
    """Return the words of a header in lower case, which commas separate."""
    return {word.strip().lower() for word in header.split(b",")}
