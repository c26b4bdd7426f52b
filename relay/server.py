"""The relay's server, which admits ends by tickets, pairs ends, and copies bytes within pairs."""

import asyncio
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field

from detcloud.shared.tunnel.freed_memory import keep_freed_memory
from detcloud.shared.tunnel.tickets import Side, Ticket, TicketRefused, read_ticket
from detcloud.shared.tunnel.websocket import (
    BINARY,
    CLOSE,
    GOING_AWAY,
    NORMAL,
    PING,
    PONG,
    TRY_AGAIN,
    WebSocketError,
    WebSocketReader,
    encode,
    encode_close,
    encode_head,
)
from relay.bounds import DEFAULT_BOUNDS, RelayBounds
from relay.upgrade import (
    Refusal,
    Upgrade,
    UpgradeReader,
    encode_acceptance,
    encode_refusal,
)
from relay.used_tickets import UsedTickets

log = logging.getLogger(__name__)

_CHECK_SECONDS = 1.0
# The time in which a client must read the last bytes of a connection that the relay closes.
_LINGER_SECONDS = 5.0
# The most stored bytes of an end before the admission of the peer. A handshake has fewer.
_EARLY_BYTES_MAX = 65_536


@dataclass(eq=False)
class _Pair:
    """The admitted ends of a tunnel."""

    ends: dict[Side, "_End"] = field(default_factory=dict)


class Relay:
    """A relay. All methods run in the same event loop.

    Attributes:
        connections: the open connections, in the order of their begin.
    """

    def __init__(
        self,
        secret: bytes,
        now_ms: Callable[[], int],
        bounds: RelayBounds = DEFAULT_BOUNDS,
    ) -> None:
        """Create a relay.

        Args:
            secret: the secret by which the API signs tickets.
            now_ms: returns the time in epoch ms.
            bounds: the limits.
        """
        self._secret = secret
        self._now_ms = now_ms
        self.bounds = bounds
        self.connections: dict[_End, None] = {}
        self._pairs: dict[tuple[str, str], _Pair] = {}
        self._used = UsedTickets(bounds.tickets_max)
        self._server: asyncio.Server | None = None
        self._checks: asyncio.Task[None] | None = None
        self._used_at = asyncio.get_running_loop().time()

    @property
    def idle_seconds(self) -> float:
        """The time since an admitted end was connected. 0.0 while one is."""
        if any(end.ticket is not None for end in self.connections):
            return 0.0
        return asyncio.get_running_loop().time() - self._used_at

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Listen, and return the port. Raise OSError if the port is not available."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _End(self), host, port, ssl=tls)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    def adopt(self, transport: asyncio.Transport, received: bytes) -> None:
        """Serve a connection that another server of this event loop has accepted.

        `received` are the first bytes of the connection.
        """
        end = _End(self)
        transport.set_protocol(end)
        end.connection_made(transport)
        end.data_received(received)

    async def stop(self) -> None:
        """Close all connections and stop to listen. The ends then try another relay."""
        if self._checks is not None:
            self._checks.cancel()
        if self._server is not None:
            self._server.close()
        for end in list(self.connections):
            end.finish(GOING_AWAY, "the relay ends")
        await asyncio.sleep(0)

    def register(self, end: "_End") -> bool:
        """Add a new connection, unless too many are open. Close the oldest of many strangers."""
        if len(self.connections) >= self.bounds.connections_max:
            return False
        self.connections[end] = None
        if self._checks is None or self._checks.done():
            self._checks = asyncio.create_task(self._close_overdue())
        strangers = [one for one in self.connections if one.ticket is None]
        if len(strangers) > self.bounds.strangers_max:
            strangers[0].abort()
        return True

    def admit(self, end: "_End", text: str) -> Ticket:
        """Admit an end by a ticket, and pair the end with a waiting peer.

        An end that is admitted again replaces its former connection, which may be half-open. Raise
        TicketRefused for an invalid or used ticket.
        """
        ticket = read_ticket(text, self._secret, self._now_ms())
        self._used.use(ticket, self._now_ms())
        key = ticket.tunnel, ticket.binding
        pair = self._pairs.setdefault(key, _Pair())
        if ticket.side in pair.ends:
            # Both ends of the former pair begin again, because their TLS is lost.
            for former in list(pair.ends.values()):
                former.finish(GOING_AWAY, "another connection of the tunnel began")
            pair = self._pairs.setdefault(key, _Pair())
        pair.ends[ticket.side] = end
        return ticket

    def other_end(self, ticket: Ticket) -> "_End | None":
        """Return the admitted peer of the ticket's bearer. Return None before the admission."""
        pair = self._pairs.get((ticket.tunnel, ticket.binding))
        other = Side.AGENT if ticket.side is Side.USER else Side.USER
        return pair.ends.get(other) if pair is not None else None

    def forget(self, end: "_End") -> None:
        """Remove a closed connection from the relay and from the pair of the connection."""
        self.connections.pop(end, None)
        if end.ticket is None:
            return
        self._used_at = asyncio.get_running_loop().time()
        key = end.ticket.tunnel, end.ticket.binding
        pair = self._pairs.get(key)
        if pair is not None and pair.ends.get(end.ticket.side) is end:
            del pair.ends[end.ticket.side]
            if not pair.ends:
                del self._pairs[key]

    async def _close_overdue(self) -> None:
        """Close connections that exceed a time of the bounds, until no connection is left.

        An idle relay wakes no processor.
        """
        while self.connections:
            await asyncio.sleep(_CHECK_SECONDS)
            now = asyncio.get_running_loop().time()
            for end in list(self.connections):
                end.close_if_overdue(now)


class _End(asyncio.Protocol):
    """A connection to the relay, which becomes an end of a tunnel."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self.ticket: Ticket | None = None
        """The ticket that admitted the end. None for a stranger."""
        self._transport: asyncio.Transport | None = None
        self._request = UpgradeReader(relay.bounds.head_bytes_max)
        self._reader = WebSocketReader(expects_masks=True)
        self._peer: _End | None = None
        self._is_write_paused = False
        self._since = asyncio.get_running_loop().time()
        # The bytes that arrived with the request, which are copied once the peer is there.
        self._early = b""
        self._copied = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=self._relay.bounds.buffer_bytes)
        if not self._relay.register(self):
            self._refuse(Refusal(503, "the relay has too many connections; try again later"))

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            # TLS passes on bytes after the close of the connection.
            return
        if self.ticket is None:
            answer = self._request.feed(data)
            if isinstance(answer, Upgrade):
                self._begin(answer)
            elif answer is not None:
                self._refuse(answer)
            return
        self._since = asyncio.get_running_loop().time()
        if self._peer is None:
            self._store_early(data)
        else:
            self._copy(data)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._relay.forget(self)
        peer, self._peer = self._peer, None
        if peer is not None:
            peer.finish(GOING_AWAY, "the other end left the relay")
        if self.ticket is not None:
            fields = self.ticket.tunnel, self.ticket.side, self._copied
            log.info("tunnel %s: the %s left after %d bytes", *fields)

    def pause_writing(self) -> None:
        self._is_write_paused = True
        if self._peer is not None and self._peer._transport is not None:
            self._peer._transport.pause_reading()

    def resume_writing(self) -> None:
        self._is_write_paused = False
        if self._peer is not None and self._peer._transport is not None:
            self._peer._transport.resume_reading()

    def finish(self, code: int, reason: str) -> None:
        """Send a WebSocket close frame, and close the connection after the unsent bytes.

        A connection whose client does not read is aborted.
        """
        self._relay.forget(self)
        if self._transport is None:
            return
        if self._is_write_paused:
            self.abort()
            return
        if self.ticket is not None:
            self._transport.write(encode_close(code, reason))
        self._close_soon(self._transport)

    def abort(self) -> None:
        """Close the connection at once."""
        self._relay.forget(self)
        if self._transport is not None:
            self._transport.abort()

    def close_if_overdue(self, now: float) -> None:
        """Close a connection that exceeds a time of the bounds. `now` is the loop's time."""
        bounds, seconds = self._relay.bounds, now - self._since
        if self.ticket is None:
            if seconds > bounds.head_seconds_max:
                self.abort()
        elif self._peer is None:
            if seconds > bounds.waiting_seconds_max:
                self.finish(TRY_AGAIN, "the other end did not come; try again")
        elif max(self._since, self._peer._since) + bounds.idle_seconds_max < now:
            self.finish(GOING_AWAY, "the tunnel was silent")

    def _begin(self, upgrade: Upgrade) -> None:
        """Admit the end, and begin to copy if the peer is admitted."""
        assert self._transport is not None
        try:
            self.ticket = self._relay.admit(self, upgrade.ticket)
        except TicketRefused as refused:
            self._refuse(Refusal(403, str(refused)))
            return
        self._since = asyncio.get_running_loop().time()
        self._transport.write(encode_acceptance(upgrade.key))
        self._store_early(upgrade.rest)
        peer = self._relay.other_end(self.ticket)
        if peer is not None:
            keep_freed_memory()
            self._peer, peer._peer = peer, self
            peer._start_copying()
            self._start_copying()

    def _store_early(self, data: bytes) -> None:
        """Store bytes that arrive before the peer.

        Beyond _EARLY_BYTES_MAX, further bytes wait in the system's buffers. Fewer bytes do not stop
        the reading, because the relay would not notice that the end has left.
        """
        self._early += data
        if len(self._early) > _EARLY_BYTES_MAX and self._transport is not None:
            self._transport.pause_reading()

    def _start_copying(self) -> None:
        early, self._early = self._early, b""
        self._since = asyncio.get_running_loop().time()
        if early:
            self._copy(early)
        peer = self._peer
        if self._transport is not None and peer is not None and not peer._is_write_paused:
            self._transport.resume_reading()

    def _copy(self, data: bytes) -> None:
        """Pass the payload of received bytes to the peer, and answer control frames."""
        try:
            found = self._reader.feed(data)
        except WebSocketError as error:
            self.finish(error.code, str(error))
            return
        payload = [piece for piece in found if isinstance(piece, memoryview)]
        size = sum(map(len, payload))
        if size and self._peer is not None and self._peer._transport is not None:
            self._copied += size
            # A frame for all pieces needs only a single system call here and at the peer.
            self._peer._transport.write(b"".join((encode_head(BINARY, size), *payload)))
        for piece in found:
            if isinstance(piece, memoryview) or self._transport is None:
                continue
            if piece.opcode == CLOSE:
                self.finish(NORMAL, "")
            elif piece.opcode == PING and not self._is_write_paused:
                self._transport.write(encode(PONG, piece.payload))

    def _refuse(self, refusal: Refusal) -> None:
        """Answer an HTTP error, and close the connection."""
        self._relay.forget(self)
        if self._transport is not None:
            self._transport.write(encode_refusal(refusal))
            self._close_soon(self._transport)

    def _close_soon(self, transport: asyncio.Transport) -> None:
        """Close the connection after the unsent bytes, at the latest after _LINGER_SECONDS."""
        transport.close()
        asyncio.get_running_loop().call_later(_LINGER_SECONDS, transport.abort)
