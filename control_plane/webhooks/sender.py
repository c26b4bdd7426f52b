"""Sending a request of a webhook over HTTP, to checked addresses and within bounds.

Redirects are not followed, and proxies are not used. The whole exchange has one time limit.
"""

import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Protocol

from control_plane.webhooks.safe_addresses import (
    AddressRule,
    Resolve,
    Target,
    UrlRefused,
    parse_url,
    resolve_checked,
)

SECONDS_MAX = 10.0
"""The time limit of an attempt, in seconds: resolution, connection, request and answer."""
BODY_BYTES_MAX = 256 * 1024
ANSWER_BYTES_MAX = 64 * 1024
"""The most bytes of an answer that are read. The rest is discarded with the connection."""
ANSWER_CHARACTERS_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Request:
    """A request to a receiver."""

    url: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    """The headers by name, without `Host` and the length."""
    method: str = "POST"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of an attempt."""

    is_delivered: bool
    status: int | None = None
    """The HTTP status of the answer. None: no answer."""
    error: str = ""
    """The reason for users why the attempt failed, or "". The URL is not part of it."""
    is_final: bool = False
    """Whether no later attempt can succeed: the receiver answered with status 410, or the format
    cannot announce the event.
    """
    is_skipped: bool = False
    """Whether no request was made, because the format cannot announce the event."""


class Sender(Protocol):
    """The way in which requests leave the cluster."""

    def send(self, request: Request) -> Outcome:
        """Send a request, and return the outcome within SECONDS_MAX. No error is raised."""


class HttpSender:
    """A sender over HTTP.

    Args:
        read_rule: returns the decision which hosts webhooks may reach.
        resolve: resolves a name. None: the resolver of the machine.
        seconds_max: the time limit of an attempt, in seconds.
    """

    def __init__(
        self,
        read_rule: Callable[[], AddressRule],
        resolve: Resolve | None = None,
        seconds_max: float = SECONDS_MAX,
    ) -> None:
        self._read_rule = read_rule
        self._resolve = resolve
        self._seconds_max = seconds_max

    def send(self, request: Request) -> Outcome:
        """Send a request to a checked address, and return the outcome.

        An answer with a status from 200 to 299 means a delivery. No error is raised.
        """
        deadline = time.monotonic() + self._seconds_max
        if len(request.body) > BODY_BYTES_MAX:
            return Outcome(False, error=f"the request has more than {BODY_BYTES_MAX} bytes")
        try:
            rule = self._read_rule()
            target = parse_url(request.url, rule)
            half_seconds = self._seconds_max / 2
            addresses = resolve_checked(target, rule, half_seconds, self._resolve)
            return _exchange(target, addresses, request, deadline)
        except UrlRefused as error:
            return Outcome(False, error=str(error))
        except TimeoutError:
            return Outcome(False, error=f"no answer within {self._seconds_max:.0f} s")
        except ssl.SSLError as error:
            return Outcome(False, error=f"the encryption failed: {error.reason or 'no reason'}")
        except (OSError, HTTPException) as error:
            return Outcome(False, error=f"the request failed: {_reason(error)}")


class _Connection(HTTPConnection):
    """A connection over a socket that is connected already."""

    def __init__(self, host: str, connected: socket.socket) -> None:
        super().__init__(host)
        self.sock = connected

    def connect(self) -> None:
        """Refuse another connection, which would resolve the host again. Raises OSError."""
        raise OSError("the connection was closed")


def _exchange(
    target: Target, addresses: tuple[str, ...], request: Request, deadline: float
) -> Outcome:
    """Connect to an address, send the request and read the answer.

    Raises OSError and HTTPException.
    """
    connected = _connect(target, addresses, deadline)
    try:
        connection = _Connection(target.host, connected)
        connection.putrequest(
            request.method, target.path, skip_host=True, skip_accept_encoding=True
        )
        length = {"Host": target.authority, "Content-Length": str(len(request.body))}
        for name, value in {**length, "Connection": "close", **request.headers}.items():
            connection.putheader(name, value)
        connected.settimeout(_seconds_left(deadline))
        connection.endheaders(request.body)
        reader = _DeadlineReader(connected, deadline)
        response = HTTPResponse(reader, method=request.method)  # type: ignore[arg-type]
        response.begin()
        return _outcome(response.status, _read_answer(response))
    finally:
        connected.close()


def _read_answer(response: HTTPResponse) -> bytes:
    """Return the beginning of an answer. Return b"" for an accepted event, and after an error.

    The status alone decides, so that an event whose answer breaks off is not delivered again.
    """
    if 200 <= response.status < 300:
        return b""
    try:
        return response.read(ANSWER_BYTES_MAX)
    except (OSError, HTTPException):
        return b""


class _DeadlineReader:
    """The socket and the file from which `HTTPResponse` reads an answer until the deadline.

    The time limit of a socket counts from each read, so that a receiver could answer byte by byte
    without end.
    """

    def __init__(self, connected: socket.socket, deadline: float) -> None:
        self._connected = connected
        self._deadline = deadline
        self._buffer = b""
        self._received = 0

    def makefile(self, mode: str) -> "_DeadlineReader":
        """Return the reader as the file of the socket's bytes."""
        return self

    def readline(self, size: int = -1) -> bytes:
        """Return the next line, or at most `size` bytes of the line. Raises OSError."""
        while b"\n" not in self._buffer and not 0 <= size <= len(self._buffer):
            if not self._receive():
                break
        end = self._buffer.find(b"\n") + 1 or len(self._buffer)
        return self._take(min(end, size) if size >= 0 else end)

    def read(self, size: int = -1) -> bytes:
        """Return `size` bytes, or fewer at the end of the answer. Raises OSError."""
        while not 0 <= size <= len(self._buffer) and self._receive():
            pass
        return self._take(size if size >= 0 else len(self._buffer))

    def flush(self) -> None:
        """Do nothing, because the file is only read."""

    def close(self) -> None:
        """Discard the rest of the answer."""
        self._buffer = b""

    def _receive(self) -> bool:
        """Receive more bytes. Return False at the end of the answer or of ANSWER_BYTES_MAX.

        Raises OSError, and TimeoutError at the deadline.
        """
        if self._received > ANSWER_BYTES_MAX:
            return False
        self._connected.settimeout(_seconds_left(self._deadline))
        received = self._connected.recv(16 * 1024)
        self._received += len(received)
        self._buffer += received
        return bool(received)

    def _take(self, size: int) -> bytes:
        """Return and remove the first bytes of the buffer."""
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken


def _connect(target: Target, addresses: tuple[str, ...], deadline: float) -> socket.socket:
    """Connect to the first address that accepts, with encryption for https.

    The certificate must be valid for the host of the URL. Raises OSError of the last address.
    """
    failure: OSError = OSError(f"{target.host} has no address")
    for address in addresses:
        try:
            connected = socket.create_connection((address, target.port), _seconds_left(deadline))
        except OSError as error:
            failure = error
            continue
        if not target.is_encrypted:
            return connected
        try:
            connected.settimeout(_seconds_left(deadline))
            context = ssl.create_default_context()
            return context.wrap_socket(connected, server_hostname=target.host)
        except BaseException:
            connected.close()
            raise
    raise failure


def _outcome(status: int, answer: bytes) -> Outcome:
    """Return the outcome of an answer. A redirect is a failure, because it is not followed."""
    if 200 <= status < 300:
        return Outcome(True, status)
    shown = "".join(c for c in answer.decode("utf-8", "replace") if c.isprintable())
    shown = shown[:ANSWER_CHARACTERS_SHOWN].strip()
    advice = "; redirects are not followed" if 300 <= status < 400 else ""
    text = f"the receiver answered with status {status}{advice}"
    return Outcome(False, status, f"{text}: {shown}" if shown else text, is_final=status == 410)


def _seconds_left(deadline: float) -> float:
    """Return the seconds until a deadline. Raises TimeoutError at the deadline."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _reason(error: Exception) -> str:
    """Return the reason of an error of the network, without addresses."""
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(reason)[:ANSWER_CHARACTERS_SHOWN]
