"""The end of a tunnel on a machine: a thread with session, link to the relay and local sockets."""

from __future__ import annotations

import contextlib
import errno
import random
import selectors
import socket
import ssl
import threading
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Protocol

from detcloud.shared.tunnel.frames import ProtocolError
from detcloud.shared.tunnel.freed_memory import keep_freed_memory
from detcloud.shared.tunnel.local_sockets import LocalSockets
from detcloud.shared.tunnel.multiplexer import (
    ResetReason,
    ServiceOpened,
    StreamChanged,
    StreamOpened,
    StreamReset,
)
from detcloud.shared.tunnel.refusals import refusal_text
from detcloud.shared.tunnel.relay_link import (
    OUTGOING_BYTES,
    LinkBroken,
    RelayStarting,
    RelayUnavailable,
)
from detcloud.shared.tunnel.session import NoticeReceived, SessionClosed, SessionResumed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from detcloud.shared.tunnel.relay_link import RelayLink
    from detcloud.shared.tunnel.session import SessionEvent, TunnelSession

PING_SECONDS = 15.0
"""The time without received bytes after which an end asks for a sign of life."""
DEAD_SECONDS = 45.0
"""The time without received bytes after which a link counts as broken."""
RESUME_SECONDS_MAX = 600.0
"""The time without a link after which an end gives up its session."""
STARTING_SECONDS_MAX = 120.0
"""The time that an end waits for a relay that is starting."""
LINK_SECONDS_MAX = 6 * 3600.0
"""The age of a link at which the user's end dials again, so that the cluster keeps the tunnel."""
IDLE_WARNING_SECONDS = 300.0
"""The time before the end of an idle tunnel at which a sentence warns, at most half of the time."""
_TURN_SECONDS = 1.0
_ACCEPT_PAUSE_SECONDS = 1.0
_EXHAUSTED = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
_CHUNK_BYTES = 131_072
_LAST_WORDS_SECONDS = 2.0
_STARTING_PAUSE_SECONDS = 1.0
_PAUSE_SECONDS_MIN, _PAUSE_SECONDS_MAX = 0.2, 10.0
_WAKE, _LINK, _LISTENER = "wake", "link", "listener"


class TunnelOver(Exception):
    """The cluster has ended the tunnel, so the end must not dial again."""


class _LinkOld(Exception):
    """The user's end replaces a link that still works."""


class TrialPorts(Protocol):
    """The ports and services of a trial, to which the agent's end connects.

    No method blocks for long.
    """

    def connect(self, port: int) -> socket.socket | ResetReason:
        """Return a socket that connects to a port without blocking, or the reason of a refusal."""

    def check(self, port: int) -> ResetReason | None:
        """Return the reason to refuse a port on which other programs than the trial's listen.

        Return None if only programs of the trial listen.
        """

    def serve(self, service: str) -> socket.socket | ResetReason:
        """Return a connected socket of a service, or the reason of a refusal."""


class TunnelEnd:
    """The end of a tunnel on a machine. `run` carries the streams in the calling thread.

    `stop`, `notify` and `open_service` may be called from any thread.
    """

    def __init__(
        self,
        session: TunnelSession,
        dial: Callable[[], RelayLink],
        *,
        listeners: Sequence[tuple[socket.socket, int]] = (),
        ports: TrialPorts | None = None,
        report: Callable[[str], None] = lambda text: None,
        report_notice: Callable[[str], None] | None = None,
        idle_seconds: float = 0.0,
        on_use: Callable[[], None] = lambda: None,
    ) -> None:
        """Create an end.

        Args:
            session: the session, which has no connection yet.
            dial: opens a link to the relay. Raises RelayUnavailable if another attempt may succeed,
                and TunnelOver if not.
            listeners: at the user's end, sockets that listen, each with the port of the trial.
            ports: at the agent's end, the ports and services of the trial.
            report: called in the thread of `run` with sentences about the tunnel.
            report_notice: called in the same way with sentences of the machine, by default
                `report`.
            idle_seconds: the time without bytes of programs after which this end closes the tunnel.
                0 for never.
            on_use: called in the thread of `run` whenever bytes of a program pass. Must not block.
        """
        self._session = session
        self._dial = dial
        self._listeners = listeners
        self._ports = ports
        self._report = report
        self._report_notice = report_notice or report
        self._on_use = on_use
        self._selector = selectors.DefaultSelector()
        self._sockets = LocalSockets(session.streams, self._selector)
        self._stop_reason: str | None = None
        self._notices: deque[str] = deque(maxlen=8)
        self._wake_reader, self._wake_writer = socket.socketpair()
        # The services that this process wants to open. None once the end is over.
        self._wanted: list[tuple[str, socket.socket]] | None = []
        self._changing = threading.Lock()
        self._heard_at = self._pinged_at = self._acked_at = time.monotonic()
        self._dialled_at = self._used_at = time.monotonic()
        self._idle_seconds = idle_seconds
        self._has_warned = False
        # When listeners are watched again, after the system had no descriptor for a connection.
        self._accepts_at: float | None = None
        self._closed: str | None = None
        self.is_abandoned = False
        """Whether `run` has ended because the peer did not come back for RESUME_SECONDS_MAX."""
        self.ready = threading.Event()
        """Set when the peer has answered for the first time."""

    @property
    def open_sockets(self) -> int:
        """The number of connections of local programs."""
        return len(self._sockets)

    def stop(self, reason: str) -> None:
        """End the tunnel for this reason, which the peer shows. Return at once."""
        if self._stop_reason is None:
            self._stop_reason = reason
        self._wake()

    def notify(self, text: str) -> None:
        """Send a sentence to the user's terminal. Return at once."""
        self._notices.append(text)
        self._wake()

    def open_service(self, service: str, connection: socket.socket) -> None:
        """Open a stream to a service of the allocation at the user's end. Return at once.

        The end carries the bytes of `connection`, and closes the socket with the stream. A refused
        stream is reported, and the socket closed. After the end of `run`, only close the socket.
        """
        with self._changing:
            if self._wanted is None:
                connection.close()
                return
            self._wanted.append((service, connection))
        self._wake()

    def run(self) -> str:
        """Carry the streams until the end of the tunnel, and return the reason of the end.

        A broken link is dialled again. All local sockets are closed at the end; listeners stay.
        """
        keep_freed_memory()
        self._register()
        pause, lost_at = _PAUSE_SECONDS_MIN, time.monotonic()
        starts_at: float | None = None
        try:
            while self._stop_reason is None and self._closed is None:
                if time.monotonic() - lost_at > RESUME_SECONDS_MAX:
                    self.is_abandoned = True
                    return f"no connection was possible for {RESUME_SECONDS_MAX:g} s"
                try:
                    if self._carry_once():
                        pause, lost_at = _PAUSE_SECONDS_MIN, time.monotonic()
                    starts_at = None
                except TunnelOver as over:
                    return str(over)
                except RelayStarting as error:
                    pause = _STARTING_PAUSE_SECONDS
                    if starts_at is None:
                        starts_at = time.monotonic()
                        self._report(str(error))
                    elif time.monotonic() - starts_at > STARTING_SECONDS_MAX:
                        return f"the relay did not start within {STARTING_SECONDS_MAX:g} s"
                except RelayUnavailable as error:
                    starts_at = None
                    self._report(f"{error}; trying again")
                if self._stop_reason is None and self._closed is None:
                    self._wait(pause * random.uniform(0.5, 1.0))
                    pause = min(pause * 2, _PAUSE_SECONDS_MAX)
            return self._closed or self._stop_reason or "the tunnel has ended"
        finally:
            self._close()

    def _carry_once(self) -> bool:
        """Dial, and carry streams until the link breaks. Return whether the peer answered."""
        link = self._dial()
        self._session.begin_connection()
        self._heard_at = self._pinged_at = self._dialled_at = time.monotonic()
        self._selector.register(link, selectors.EVENT_READ, (_LINK, link))
        try:
            self._carry(link)
        except _LinkOld:
            pass
        except LinkBroken as error:
            if self._session.is_resumed:
                self._report(f"the connection was interrupted: {error}; resuming")
        except ssl.SSLError as error:
            self._report(f"the other end did not prove its key: {error}; trying again")
        except ProtocolError as error:
            self._closed = str(error)
            self._session.close(str(error))
            self._send_last_words(link)
        finally:
            self._selector.unregister(link)
            link.close()
        return self._session.is_resumed

    def _carry(self, link: RelayLink) -> None:
        """Carry streams until the session is closed. Raise LinkBroken if the link ends before."""
        while self._closed is None:
            if self._stop_reason is not None:
                self._session.close(self._stop_reason)
                self._send_last_words(link)
                return
            self._send(link)
            writes = selectors.EVENT_WRITE if link.unsent_bytes else 0
            self._selector.modify(link, selectors.EVENT_READ | writes, (_LINK, link))
            self._keep_alive(link)
            self._check_idle()
            seconds = 0.0 if link.has_buffered_input else _TURN_SECONDS
            ready = self._selector.select(seconds)
            if link.has_buffered_input:
                self._receive(link)
            for key, mask in ready:
                if isinstance(key.data, int):
                    self._note_use()
                    self._sockets.handle_ready(key.data, mask)
                elif key.data[0] == _LINK:
                    if mask & selectors.EVENT_READ:
                        self._receive(link)
                elif key.data[0] == _LISTENER:
                    self._accept(key.data[1], key.data[2])
                else:
                    self._clear_wake()

    def _send(self, link: RelayLink) -> None:
        """Give the link frames of the session until OUTGOING_BYTES wait in the link."""
        while self._notices:
            self._session.notice(self._notices.popleft())
        if self._wanted:
            self._open_wanted()
        while link.is_established and link.unsent_bytes < OUTGOING_BYTES:
            frames = self._session.next_frames(_CHUNK_BYTES)
            if not frames:
                break
            link.send(frames)
            link.flush()
        link.flush()
        self._sockets.close_finished()
        self._sockets.resume_stalled()

    def _receive(self, link: RelayLink) -> None:
        data = link.receive()
        if data:
            self._heard_at = time.monotonic()
            for event in self._session.feed(data):
                self._handle(event)

    def _handle(self, event: SessionEvent) -> None:
        """Apply an event of the session to the local sockets, or report the event."""
        match event:
            case StreamOpened(stream, port):
                self._open_local(stream, port)
            case ServiceOpened(stream, service):
                self._serve_local(stream, service)
            case StreamChanged(stream):
                self._note_use()
                self._sockets.handle_change(stream)
            case StreamReset(stream, reason):
                self._sockets.handle_reset(stream)
                self._report_refusal(reason)
            case NoticeReceived(text):
                self._report_notice(text)
            case SessionResumed(is_first):
                self.ready.set()
                if not is_first:
                    self._report("the connection was resumed")
            case SessionClosed(reason):
                self._closed = reason or "the other end has closed the tunnel"

    def _open_local(self, stream: int, port: int) -> None:
        """Connect to the port of a stream that the user's end opened, or reset the stream."""
        assert self._ports is not None
        connect, check = partial(self._ports.connect, port), partial(self._ports.check, port)
        self._connect_local(stream, connect, check)

    def _serve_local(self, stream: int, service: str) -> None:
        """Connect a stream that the user's end opened to a service, or reset the stream."""
        assert self._ports is not None
        self._connect_local(stream, partial(self._ports.serve, service))

    def _connect_local(
        self,
        stream: int,
        connect: Callable[[], socket.socket | ResetReason],
        check: Callable[[], ResetReason | None] | None = None,
    ) -> None:
        """Connect a stream to the socket of `connect`, or reset the stream.

        `check` is called once the connection is established, as `LocalSockets.add` describes.
        """
        found: socket.socket | ResetReason = ResetReason.NO_ROOM
        with contextlib.suppress(OSError):
            found = connect()
        if isinstance(found, ResetReason):
            self._session.streams.reset(stream, found)
        else:
            self._sockets.add(stream, found, check)

    def _open_wanted(self) -> None:
        """Open the streams that `open_service` has requested."""
        with self._changing:
            wanted, self._wanted = self._wanted or [], []
        for service, connection in wanted:
            self._note_use()
            self._add_stream(self._session.streams.open_service(service), connection)

    def _add_stream(self, stream: int | None, connection: socket.socket) -> None:
        """Connect a new stream to a socket. Close the socket if the stream could not be opened."""
        if stream is None:
            self._report("the tunnel has too many open connections; a new one was closed")
            connection.close()
        else:
            self._sockets.add(stream, connection)

    def _accept(self, listener: socket.socket, port: int) -> None:
        """Accept a connection of a local program, and open a stream for the connection."""
        self._note_use()
        try:
            connection, _ = listener.accept()
        except OSError as error:
            if error.errno in _EXHAUSTED:
                self._pause_accepting(str(error.strerror))
            return
        self._add_stream(self._session.streams.open_stream(port), connection)

    def _pause_accepting(self, reason: str) -> None:
        """Leave new connections in the system's queue, until a descriptor may be free again."""
        if self._accepts_at is None:
            self._report(f"new connections wait: {reason}; close others, or raise `ulimit -n`")
            for listener, _ in self._listeners:
                self._selector.unregister(listener)
        self._accepts_at = time.monotonic() + _ACCEPT_PAUSE_SECONDS

    def _resume_accepting(self) -> None:
        self._accepts_at = None
        for listener, port in self._listeners:
            self._selector.register(listener, selectors.EVENT_READ, (_LISTENER, listener, port))

    def _note_use(self) -> None:
        self._used_at, self._has_warned = time.monotonic(), False
        self._on_use()

    def _check_idle(self) -> None:
        """Close the tunnel if no program has used it for `idle_seconds`.

        A warning always comes first, also after the machine was suspended.
        """
        if not self._idle_seconds:
            return
        now, grace = time.monotonic(), min(IDLE_WARNING_SECONDS, self._idle_seconds / 2)
        left = self._used_at + self._idle_seconds - now
        if left > grace:
            return
        if not self._has_warned:
            self._has_warned = True
            text = f"no byte has passed for {_time_text(now - self._used_at)}"
            self._used_at = now - self._idle_seconds + grace
            self._report(f"{text}; the tunnel closes in {_time_text(grace)} unless it is used")
        elif left <= 0:
            self._stop_reason = f"no byte has passed for {_time_text(self._idle_seconds)}"

    def _keep_alive(self, link: RelayLink) -> None:
        """Acknowledge, ping a silent peer, and raise LinkBroken if the peer stays silent.

        At the user's end, raise _LinkOld if the link is old.
        """
        now = time.monotonic()
        if self._accepts_at is not None and now >= self._accepts_at:
            self._resume_accepting()
        if self._ports is None and now - self._dialled_at > LINK_SECONDS_MAX:
            raise _LinkOld
        if now - self._acked_at >= _TURN_SECONDS:
            self._acked_at = now
            self._session.acknowledge()
        silent = now - self._heard_at
        if silent > DEAD_SECONDS:
            raise LinkBroken(f"no answer for {DEAD_SECONDS:g} s")
        if silent > PING_SECONDS and now - self._pinged_at > PING_SECONDS:
            self._pinged_at = now
            self._session.ping()
            link.ping_relay()

    def _send_last_words(self, link: RelayLink) -> None:
        """Send the CLOSE of the session, for at most _LAST_WORDS_SECONDS."""
        with contextlib.suppress(LinkBroken, ssl.SSLError):
            if link.is_established:
                while frames := self._session.next_frames(_CHUNK_BYTES):
                    link.send(frames)
                link.finish(_LAST_WORDS_SECONDS)

    def _report_refusal(self, reason: int) -> None:
        """Report why the agent's end refused a stream. An ordinary end is not reported."""
        if text := refusal_text(reason):
            self._report(text)

    def _register(self) -> None:
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        self._selector.register(self._wake_reader, selectors.EVENT_READ, (_WAKE,))
        for listener, port in self._listeners:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ, (_LISTENER, listener, port))

    def _wait(self, seconds: float) -> None:
        """Wait until `stop` or `notify` is called, for at most `seconds`."""
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._wake_reader, selectors.EVENT_READ)
            if waiting.select(seconds):
                self._clear_wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._wake_writer.send(b"w")

    def _clear_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wake_reader.recv(4096):
                pass

    def _close(self) -> None:
        with self._changing:
            wanted, self._wanted = self._wanted or [], None
        for _, connection in wanted:
            connection.close()
        self._sockets.close_all()
        self._selector.close()
        self._wake_reader.close()
        self._wake_writer.close()


def _time_text(seconds: float) -> str:
    """Return a duration in minutes, or in seconds below two minutes."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
