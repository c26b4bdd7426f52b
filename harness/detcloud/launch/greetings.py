"""The greetings of connections to a shell. Connections greet in parallel, so that a slow connection
blocks no other connection.
"""

from __future__ import annotations

import contextlib
import hmac
import select
import socket
import time
from collections import deque
from dataclasses import dataclass

from detcloud.shared.shell_frames import GREETING_BYTES_MAX, Greeting

READ_BYTES = 32_768


@dataclass(frozen=True)
class LobbyLimits:
    """Limits on connections that have not sent the token."""

    greeting_seconds_max: float = 10.0
    """The time limit for a complete greeting."""
    strangers_max: int = 128
    """The maximum number of connections. A connection above the maximum closes the oldest."""


DEFAULT_LIMITS = LobbyLimits()


class GreetingReader:
    """Collects the first line of a connection, the greeting, from received bytes.

    A greeting contains the token, the terminal and the program to run.
    """

    def __init__(self, token: str) -> None:
        self._token = token
        self._received = b""

    def feed(self, received: bytes) -> tuple[Greeting, bytes] | None:
        """Add received bytes. Return the greeting and the bytes after its line, or None.

        None means that the line is not complete yet. Raises ValueError if the line is no greeting,
        is too long, or contains a wrong token; the caller closes the connection.
        """
        self._received += received
        line, newline, more = self._received.partition(b"\n")
        if len(line) > GREETING_BYTES_MAX:
            raise ValueError(f"a greeting has at most {GREETING_BYTES_MAX} bytes")
        if not newline:
            return None
        greeting = Greeting.decode(line)
        if not hmac.compare_digest(greeting.token.encode(), self._token.encode()):
            raise ValueError("the token is wrong")
        return greeting, more


@dataclass
class GreetedConnection:
    """A connection that has sent the token."""

    connection: socket.socket
    greeting: Greeting
    received: bytes
    """The bytes that followed the greeting."""


@dataclass
class _Stranger:
    """A connection that has not sent the token yet."""

    connection: socket.socket
    reader: GreetingReader
    ends_at: float
    """The monotonic time at which the connection is closed, in seconds."""


class Lobby:
    """The connections of a listener that have not sent the token yet.

    No connection waits for another.
    """

    def __init__(
        self, listener: socket.socket, token: str, limits: LobbyLimits = DEFAULT_LIMITS
    ) -> None:
        """Create an empty lobby, and make the listener non-blocking."""
        self._listener = listener
        self._token = token
        self._limits = limits
        # The oldest first.
        self._strangers: deque[_Stranger] = deque()
        listener.setblocking(False)

    def receive(self, seconds_max: float | None = None) -> list[GreetedConnection]:
        """Accept a connection, read greetings, and return the connections that have sent the token.

        Wait for an event until the next connection is late, at most `seconds_max` if not None.
        Close connections that are late, send an invalid greeting, or are too many. The result is
        empty after a wait without an event, and while greetings are incomplete. The caller closes
        returned connections.
        """
        self._close_late_ones()
        waits = [seconds_max] if seconds_max is not None else []
        if self._strangers:
            waits.append(max(0.0, self._strangers[0].ends_at - time.monotonic()))
        sources = {stranger.connection.fileno(): stranger for stranger in self._strangers}
        timeout = min(waits, default=None)
        listening = self._listener.fileno()
        readable, _, _ = select.select([listening, *sources], [], [], timeout)
        answers = [self._read(sources[source]) for source in readable if source in sources]
        if listening in readable:
            self._accept()
        return [greeted for greeted in answers if greeted is not None]

    def close(self) -> None:
        """Close the listener and every connection in the lobby."""
        self._listener.close()
        for stranger in self._strangers:
            stranger.connection.close()

    def _accept(self) -> None:
        """Accept a connection, if possible. Close the oldest of more than `strangers_max`
        connections.
        """
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            ends_at = time.monotonic() + self._limits.greeting_seconds_max
            self._strangers.append(_Stranger(connection, GreetingReader(self._token), ends_at))
        if len(self._strangers) > self._limits.strangers_max:
            self._strangers.popleft().connection.close()

    def _read(self, stranger: _Stranger) -> GreetedConnection | None:
        """Read from a connection. Return the connection once the greeting is complete, else None.

        A returned connection is removed from the lobby and blocks on reads. Close and remove a
        connection that has ended or sent an invalid greeting.
        """
        try:
            received = stranger.connection.recv(READ_BYTES)
            if not received:
                raise ValueError("there is no greeting")
            greeting = stranger.reader.feed(received)
        except BlockingIOError:
            return None
        except (OSError, ValueError):
            self._strangers.remove(stranger)
            stranger.connection.close()
            return None
        if greeting is None:
            return None
        self._strangers.remove(stranger)
        stranger.connection.setblocking(True)
        return GreetedConnection(stranger.connection, *greeting)

    def _close_late_ones(self) -> None:
        """Close and remove the connections without a greeting in time."""
        while self._strangers and self._strangers[0].ends_at <= time.monotonic():
            self._strangers.popleft().connection.close()
