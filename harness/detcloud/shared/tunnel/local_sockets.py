"""The sockets of this machine that are connected with the streams of a tunnel.

A socket is read only while its stream may send, and written only while its program reads. So the
buffers of the system and the windows of the streams slow down the faster side.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from detcloud.shared.tunnel.multiplexer import DATA_BYTES, ResetReason

if TYPE_CHECKING:
    from collections.abc import Callable

    from detcloud.shared.tunnel.multiplexer import Multiplexer

# With this option, a closed socket sends a reset instead of the regular end.
_LINGER_NOT = struct.pack("ii", 1, 0)


@dataclass(eq=False)
class _LocalSocket:
    """A socket of a program on this machine, with a stream."""

    connection: socket.socket
    stream: int
    check: Callable[[], ResetReason | None] | None = None
    """Checks a connection that is not established yet. None once it is established."""
    interest: int = 0
    """The events for which the selector waits."""
    has_read_all: bool = False
    """Whether the program has ended its bytes."""
    has_written_all: bool = False
    """Whether the program was told that the peer sends no more bytes."""
    has_unwritten: bool = False
    """Whether received bytes wait for the program."""


class LocalSockets:
    """The local sockets of a session's streams."""

    def __init__(self, streams: Multiplexer, selector: selectors.BaseSelector) -> None:
        """Create an empty collection. The sockets are registered with `selector`."""
        self._streams = streams
        self._selector = selector
        self._sockets: dict[int, _LocalSocket] = {}
        self._stalled: set[int] = set()
        # The streams whose sockets have read and written all bytes.
        self._ending: set[int] = set()

    def __len__(self) -> int:
        """Return the number of open sockets."""
        return len(self._sockets)

    def add(
        self,
        stream: int,
        connection: socket.socket,
        check: Callable[[], ResetReason | None] | None = None,
    ) -> None:
        """Connect a stream to a socket, which then does not block any more.

        With `check`, the socket is still connecting. `check` is called once the connection is
        established, and returns None, or the reason to end the stream.
        """
        connection.setblocking(False)
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        local = _LocalSocket(connection, stream, check)
        self._sockets[stream] = local
        self._set_interest(local)

    def handle_change(self, stream: int) -> None:
        """Pass on received bytes of a stream, after an event `StreamChanged`."""
        local = self._sockets.get(stream)
        if local is not None and local.check is None:
            self._write(local)

    def handle_reset(self, stream: int) -> None:
        """Close the socket of a stream that the peer has reset."""
        local = self._sockets.get(stream)
        if local is not None:
            self._close(local, is_regular=False)

    def handle_ready(self, stream: int, mask: int) -> None:
        """Read and write a socket after the selector has returned events of the socket."""
        local = self._sockets.get(stream)
        if local is None:
            return
        if local.check is not None and not self._finish_connecting(local, local.check):
            return
        if mask & selectors.EVENT_READ:
            self._read(local)
        if stream in self._sockets and mask & selectors.EVENT_WRITE:
            self._write(local)

    def resume_stalled(self) -> None:
        """Resume reading the sockets of stalled streams that may send again.

        The selector then ignores the sockets of the other stalled streams. Call this after frames
        were sent, and before each use of the selector.
        """
        for stream in list(self._stalled):
            local = self._sockets.get(stream)
            if local is None:
                self._stalled.discard(stream)
            else:
                self._set_interest(local)

    def close_finished(self) -> None:
        """Close the sockets of streams that have ended in both directions.

        Call this after frames were received or sent.
        """
        for stream in list(self._ending):
            if not self._streams.is_open(stream):
                self._close(self._sockets[stream], is_regular=True)

    def close_all(self) -> None:
        """Close all sockets with a reset, because bytes may be lost."""
        for local in list(self._sockets.values()):
            self._close(local, is_regular=False)

    def _finish_connecting(
        self, local: _LocalSocket, check: Callable[[], ResetReason | None]
    ) -> bool:
        """Return whether the connection is established and passes the check.

        Otherwise end the stream.
        """
        failed = local.connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        reason: ResetReason | None = ResetReason.REFUSED
        if not failed:
            try:
                reason = check()
            except OSError:
                reason = ResetReason.NO_ROOM
        if reason is not None:
            self._streams.reset(local.stream, reason)
            self._close(local, is_regular=False)
            return False
        local.check = None
        self._write(local)
        return local.stream in self._sockets

    def _read(self, local: _LocalSocket) -> None:
        """Read until the stream accepts no more bytes, or the program has sent no more."""
        streams, stream = self._streams, local.stream
        while not local.has_read_all and (count := min(DATA_BYTES, streams.sendable(stream))):
            try:
                data = local.connection.recv(count)
            except BlockingIOError:
                break
            except OSError:
                self._fail(local)
                return
            if not data:
                local.has_read_all = True
                streams.end(stream)
                break
            streams.send(stream, data)
            if len(data) < count:
                break
        if not local.has_read_all and streams.sendable(stream) == 0:
            # Frames are sent before the next use of the selector, and usually make room.
            self._stalled.add(stream)
        else:
            self._set_interest(local)

    def _write(self, local: _LocalSocket) -> None:
        """Write the received bytes that the program accepts now, and pass on the stream's end."""
        streams, stream = self._streams, local.stream
        local.has_unwritten = False
        try:
            while parts := streams.received_parts(stream):
                streams.consume(stream, local.connection.sendmsg(parts))
            if streams.has_ended(stream) and not local.has_written_all:
                local.has_written_all = True
                local.connection.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            local.has_unwritten = True
        except OSError:
            self._fail(local)
            return
        self._set_interest(local)

    def _fail(self, local: _LocalSocket) -> None:
        self._streams.reset(local.stream, ResetReason.CLOSED)
        self._close(local, is_regular=True)

    def _set_interest(self, local: _LocalSocket) -> None:
        """Tell the selector for which events of a socket to wait."""
        stream = local.stream
        if local.has_read_all and local.has_written_all:
            self._ending.add(stream)
        interest = 0
        if local.check is not None or local.has_unwritten:
            interest |= selectors.EVENT_WRITE
        if local.check is None and not local.has_read_all:
            if self._streams.sendable(stream) > 0:
                interest |= selectors.EVENT_READ
                self._stalled.discard(stream)
            else:
                self._stalled.add(stream)
        if interest == local.interest:
            return
        if not local.interest:
            self._selector.register(local.connection, interest, stream)
        elif not interest:
            self._selector.unregister(local.connection)
        else:
            self._selector.modify(local.connection, interest, stream)
        local.interest = interest

    def _close(self, local: _LocalSocket, *, is_regular: bool) -> None:
        if local.interest:
            self._selector.unregister(local.connection)
        del self._sockets[local.stream]
        self._stalled.discard(local.stream)
        self._ending.discard(local.stream)
        if not is_regular:
            with contextlib.suppress(OSError):
                local.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
        local.connection.close()
