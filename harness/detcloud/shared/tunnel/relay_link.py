"""A connection of a tunnel's end to the relay: WebSocket outside, TLS to the peer inside.

`dial_relay` blocks until the relay has admitted the end. The returned link does not block.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import os
import socket
import ssl
import time
from collections import deque
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from detcloud.shared.connections import is_readable, open_connection, origin
from detcloud.shared.pinned_connections import unverified_context
from detcloud.shared.proxies import find_proxy
from detcloud.shared.tunnel.websocket import (
    BINARY,
    CLEAR_MASK,
    CLOSE,
    NORMAL,
    PING,
    PONG,
    WebSocketError,
    WebSocketReader,
    accept_key,
    encode,
    encode_close,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from detcloud.shared.tunnel.keys import SecureChannel

PATH = "/tunnel"
DIAL_SECONDS = 10.0
HEAD_BYTES_MAX = 16_384
READ_BYTES = 262_144
OUTGOING_BYTES = 262_144
"""The number of unsent bytes above which no more bytes should be given to a link."""
_FLUSH_SECONDS = 0.05
# Frames of fewer bytes together are joined into a record of TLS.
_RECORD_BYTES = 16_384


class RelayUnavailable(OSError):
    """The relay cannot be reached, or did not admit this end. Another attempt may succeed.

    Attributes:
        status: the HTTP status of the relay's answer, or 0 without an answer.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class RelayStarting(RelayUnavailable):
    """The cluster has begun to start the relay, which takes less than two minutes."""

    def __init__(self) -> None:
        super().__init__("the relay is starting, which takes about a minute")


class LinkBroken(OSError):
    """The connection to the relay ended. The session can continue on another connection."""


class RelayLink:
    """An admitted connection to the relay, which does not block.

    The caller waits until the link is readable or writable. `receive` returns decrypted bytes of
    the peer, and `send` encrypts bytes for the peer.
    """

    def __init__(self, connection: socket.socket, received: bytes, channel: SecureChannel) -> None:
        """Create a link.

        Args:
            connection: the connection after the WebSocket's handshake.
            received: bytes that arrived after the handshake.
            channel: the TLS to the peer, at its beginning.
        """
        connection.setblocking(False)
        self._connection = connection
        self._channel = channel
        self._reader = WebSocketReader(expects_masks=False)
        self._early = received
        # The reason of a close frame. The bytes before the frame are returned first.
        self._end: str | None = None
        self._outgoing: deque[memoryview] = deque()
        self._unsent_bytes = 0
        self._queue_channel_bytes()

    def fileno(self) -> int:
        """Return the file descriptor of the connection."""
        return self._connection.fileno()

    @property
    def is_established(self) -> bool:
        """Whether the peer has proved the expected key. `send` requires this."""
        return self._channel.is_established

    @property
    def unsent_bytes(self) -> int:
        """The number of bytes that the connection has not accepted yet."""
        return self._unsent_bytes

    @property
    def has_buffered_input(self) -> bool:
        """Whether `receive` has input that the descriptor does not announce."""
        connection = self._connection
        is_pending = isinstance(connection, ssl.SSLSocket) and connection.pending() > 0
        return bool(self._early) or self._end is not None or is_pending

    def receive(self) -> memoryview:
        """Read available bytes, and return the decrypted bytes of the peer, possibly b"".

        Raise LinkBroken if the connection has ended or carries invalid bytes. Raise ssl.SSLError if
        the peer has not the expected key.
        """
        if self._end is not None:
            raise LinkBroken(self._end)
        received = self._read()
        try:
            for piece in self._reader.feed(received):
                if isinstance(piece, memoryview):
                    self._channel.receive(piece)
                elif piece.opcode == PING:
                    self._queue(encode(PONG, piece.payload, CLEAR_MASK))
                elif piece.opcode == CLOSE:
                    self._end = piece.reason or "the relay closed the connection"
        except WebSocketError as error:
            raise LinkBroken(f"the relay sent invalid bytes: {error}") from None
        decrypted = self._channel.read()
        self._queue_channel_bytes()
        return decrypted

    def send(self, frames: Sequence[bytes]) -> None:
        """Encrypt frames for the peer. `flush` writes the encrypted bytes."""
        is_short = sum(map(len, frames)) <= _RECORD_BYTES
        for data in (b"".join(frames),) if is_short else frames:
            self._channel.write(data)
        self._queue_channel_bytes()

    def ping_relay(self) -> None:
        """Send a ping to the relay, so that no proxy ends an idle connection."""
        self._queue(encode(PING, b"", CLEAR_MASK))

    def flush(self) -> None:
        """Write as many bytes as the connection accepts now. Raise LinkBroken at its end."""
        while self._outgoing:
            try:
                # An outer TLS must see the same bytes again after an incomplete attempt.
                count = self._connection.send(self._outgoing[0])
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                return
            except OSError as error:
                raise LinkBroken(f"the connection to the relay failed: {error}") from None
            self._unsent_bytes -= count
            sent = self._outgoing.popleft()
            if count < len(sent):
                self._outgoing.appendleft(sent[count:])

    def finish(self, seconds_max: float) -> None:
        """Send the unsent bytes and a close frame, and wait until the relay ends the connection.

        Received bytes are discarded. A connection that is closed with unread bytes is reset, and
        the relay would lose the last bytes. Return after `seconds_max` at the latest.
        """
        deadline = time.monotonic() + seconds_max
        self._queue(encode_close(NORMAL, "", CLEAR_MASK))
        with contextlib.suppress(LinkBroken):
            while (left := deadline - time.monotonic()) > 0:
                self.flush()
                pause = min(left, _FLUSH_SECONDS) if self._outgoing else left
                if is_readable(self.fileno(), pause):
                    self._read()

    def close(self) -> None:
        """Close the connection. Unsent bytes are lost."""
        self._connection.close()

    def _read(self) -> bytes:
        early, self._early = self._early, b""
        if early:
            return early
        try:
            received = self._connection.recv(READ_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return b""
        except OSError as error:
            raise LinkBroken(f"the connection to the relay failed: {error}") from None
        if not received:
            raise LinkBroken("the relay ended the connection")
        return received

    def _queue_channel_bytes(self) -> None:
        pending = self._channel.pending()
        if pending:
            self._queue(encode(BINARY, pending, CLEAR_MASK))

    def _queue(self, frame: bytes) -> None:
        self._outgoing.append(memoryview(frame))
        self._unsent_bytes += len(frame)


def dial_relay(url: str, pin: str, ticket: str, channel: SecureChannel) -> RelayLink:
    """Connect to the relay at `url` with a ticket, through the proxy of the environment if any.

    Args:
        url: the relay's address, `https://HOST` or `http://127.0.0.1:PORT`.
        pin: the SHA-256 of the relay's certificate in hexadecimal. "" to trust the authorities of
            this machine.
        ticket: the ticket of this end.
        channel: the TLS to the peer.

    Raises:
        RelayUnavailable: the relay cannot be reached, has another certificate, or refused the
            ticket.
        ValueError: the address or the environment's proxy is invalid.
    """
    if pin and not url.startswith("https://"):
        raise RelayUnavailable(f"the relay at {url} has a pin, but no certificate")
    try:
        connection = _connect(url, pin)
        try:
            received = _shake_hands(connection, url, ticket)
        except BaseException:
            connection.close()
            raise
    except RelayUnavailable:
        raise
    except (OSError, HTTPException) as error:
        raise RelayUnavailable(f"the relay at {url} cannot be reached: {error}") from None
    return RelayLink(connection, received, channel)


def dial_with_ticket(answer: Mapping[str, object], channel: SecureChannel) -> RelayLink:
    """Connect to the relay of a cluster's answer to a request for a ticket.

    Raises:
        RelayStarting: the relay does not run yet, so that the answer has no ticket.
        RelayUnavailable: see `dial_relay`.
        KeyError: the answer lacks a field.
        ValueError: see `dial_relay`.
    """
    # Clusters of former versions have no state, and a relay that always runs.
    if answer.get("relay_state") == "starting":
        raise RelayStarting
    place = str(answer["relay_url"]), str(answer["relay_pin"])
    return dial_relay(*place, str(answer["ticket"]), channel)


def _connect(url: str, pin: str) -> socket.socket:
    """Return a connection to the relay, with TLS for https."""
    scheme, host, port = origin(url)
    proxy = find_proxy(url)
    if scheme == "https" and pin:
        place = (host, port) if proxy is None else (proxy.host, proxy.port)
        connection: HTTPConnection = HTTPSConnection(
            *place, timeout=DIAL_SECONDS, context=unverified_context()
        )
    else:
        connection = open_connection(url, DIAL_SECONDS)
    if proxy is not None and (pin or scheme == "http"):
        # A proxy passes WebSocket on only through a tunnel.
        connection.set_tunnel(host, port, dict(proxy.headers))
    connection.connect()
    found: socket.socket = connection.sock
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if pin:
        _check_pin(found, pin, url)
    return found


def _check_pin(connection: socket.socket, pin: str, url: str) -> None:
    """Raise RelayUnavailable unless the relay's certificate has the digest `pin`."""
    certificate = (
        connection.getpeercert(binary_form=True) if isinstance(connection, ssl.SSLSocket) else None
    )
    digest = hashlib.sha256(certificate or b"").hexdigest()
    if not hmac.compare_digest(digest, pin.lower()):
        connection.close()
        raise RelayUnavailable(
            f"the relay at {url} has the certificate {digest}; the cluster named {pin}"
        )


def _shake_hands(connection: socket.socket, url: str, ticket: str) -> bytes:
    """Request the WebSocket, and return the bytes that arrived after the relay's answer.

    Raise RelayUnavailable if the relay does not answer 101 with the expected key.
    """
    _, host, port = origin(url)
    prefix = urlsplit(url).path.rstrip("/")
    key = base64.b64encode(os.urandom(16)).decode()
    lines = (
        f"GET {prefix}{PATH} HTTP/1.1",
        f"Host: {host}:{port}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Key: {key}",
        "Sec-WebSocket-Version: 13",
        f"Authorization: Bearer {ticket}",
        "",
        "",
    )
    connection.sendall("\r\n".join(lines).encode("ascii"))
    head, rest = _read_head(connection)
    status, headers = _parse_head(head)
    if status != 101:
        reason = headers.get("detcloud-reason", "no reason was given")
        raise RelayUnavailable(f"the relay answered {status}: {reason}", status)
    if headers.get("sec-websocket-accept") != accept_key(key):
        raise RelayUnavailable(f"{url} is no relay: its answer has another WebSocket key")
    return rest


def _read_head(connection: socket.socket) -> tuple[str, bytes]:
    """Return the head of the relay's answer, and the bytes after the head.

    The head must be complete within DIAL_SECONDS and HEAD_BYTES_MAX.
    """
    received, deadline = b"", time.monotonic() + DIAL_SECONDS
    while b"\r\n\r\n" not in received:
        left = deadline - time.monotonic()
        if len(received) > HEAD_BYTES_MAX or left <= 0:
            raise RelayUnavailable("the relay's answer is too long or too slow")
        connection.settimeout(left)
        part = connection.recv(READ_BYTES)
        if not part:
            raise RelayUnavailable("the relay ended the connection without an answer")
        received += part
    head, _, rest = received.partition(b"\r\n\r\n")
    return head.decode("latin-1"), rest


def _parse_head(head: str) -> tuple[int, dict[str, str]]:
    """Return the status and the headers, with names in lower case."""
    first, *lines = head.split("\r\n")
    words = first.split(" ", 2)
    if not words[0].startswith("HTTP/1.") or len(words) < 2 or not words[1].isdecimal():
        raise RelayUnavailable("the relay's answer is not HTTP")
    pairs = (line.partition(":") for line in lines)
    return int(words[1]), {name.strip().lower(): text.strip() for name, _, text in pairs}
