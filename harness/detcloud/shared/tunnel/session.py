"""A session of a tunnel, which outlives connections. No I/O and no clock.

Both ends keep the session while no connection exists. After a new connection, each end sends a
HELLO with the offset up to which it has received numbered frames: first the user's end, then the
agent's end. The peer then sends the later frames again. A session therefore loses no byte when
the relay ends a connection.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from detcloud.shared.tunnel.frames import (
    ACK,
    CLOSE,
    HELLO,
    NOTICE,
    NUMBERED,
    PING,
    PONG,
    Frame,
    FrameReader,
    Hello,
    ProtocolError,
    decode_ack,
    decode_hello,
    decode_text,
    encode_ack,
    encode_frame,
    encode_hello,
    encode_text,
)
from detcloud.shared.tunnel.multiplexer import Multiplexer, StreamChanged, StreamEvent
from detcloud.shared.tunnel.replay import ReplayBuffer

REPLAY_BYTES_MAX = 4 << 20
"""The memory of unacknowledged frames above which no new numbered frame is sent."""
ACK_BYTES = 524_288
"""The number of received bytes after which an ACK is sent at once."""
FORGOTTEN_SESSION = "the agent of the trial was restarted, so the tunnel's connections ended"
"""The reason of a CLOSE to a peer that resumes a session which this end does not have."""
NOTICES_MAX = 8
"""The most unsent notices. Further notices are dropped."""


@dataclass(frozen=True, slots=True)
class SessionResumed:
    """The peer's HELLO has arrived, and the connection carries the session."""

    is_first: bool
    """Whether this was the first connection of the session."""


@dataclass(frozen=True, slots=True)
class NoticeReceived:
    """The peer sent a sentence for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class SessionClosed:
    """The peer ended the session."""

    reason: str


SessionEvent = StreamEvent | SessionResumed | NoticeReceived | SessionClosed


class UnknownSession(ProtocolError):
    """The peer resumes a session that this end does not have."""


class TunnelSession:
    """A session between the user's end and the agent's end.

    The caller connects the session with `begin_connection`, passes received bytes to `feed`, and
    sends the bytes of `next_frames`. After a ProtocolError, the session must be closed.

    Attributes:
        streams: the streams of the session.
        closing: the reason for which this end closes the session, or None.
    """

    def __init__(self, session: bytes | None) -> None:
        """Create a session without a connection.

        Args:
            session: the id that the user's end has drawn, SESSION_BYTES bytes. None at the agent's
                end, which receives the id with the first HELLO, and to which the peer opens
                streams.
        """
        self._session = session
        self._is_agent = session is None
        self.streams = Multiplexer(accepts=self._is_agent)
        self.closing: str | None = None
        self._replay = ReplayBuffer()
        self._received = 0
        self._acked = 0
        self._knows_peer = False
        self._reader = FrameReader()
        # The frames that are not numbered, and not sent yet.
        self._urgent: deque[bytes] = deque()
        self._notices: deque[str] = deque()
        self._is_resumed = False
        self._is_closed = False

    @property
    def is_resumed(self) -> bool:
        """Whether the current connection carries the session: the peer's HELLO has arrived."""
        return self._is_resumed

    @property
    def replay_memory_bytes(self) -> int:
        """An estimate of the memory of the frames that may have to be sent again."""
        return self._replay.memory_bytes

    def begin_connection(self) -> None:
        """Begin a new connection, and discard the partial frames of the former connection."""
        self._reader = FrameReader()
        self._urgent.clear()
        self._is_resumed = False
        if not self._is_agent:
            self._send_hello()

    def feed(self, received: bytes | memoryview) -> list[SessionEvent]:
        """Apply received bytes of the current connection, and return the events in order.

        A StreamChanged that repeats the last event is left out. Raise ProtocolError if the peer
        breaks a rule, and UnknownSession if the peer resumes a session that this end does not have.
        """
        events: list[SessionEvent] = []
        for frame in self._reader.feed(received):
            if self._is_closed:
                break
            event = self._receive_frame(frame)
            if event is None or (
                isinstance(event, StreamChanged) and events and event == events[-1]
            ):
                continue
            events.append(event)
        if self._received - self._acked >= ACK_BYTES:
            self.acknowledge()
        return events

    def acknowledge(self) -> None:
        """Send an ACK if frames were received since the last ACK. Call this about once a second.

        The peer can then free the memory of these frames.
        """
        if self._is_resumed and self._received > self._acked and len(self._urgent) <= NOTICES_MAX:
            self._acked = self._received
            self._urgent.append(encode_ack(self._received))

    def ping(self) -> None:
        """Ask the peer for a sign of life. Do nothing while other frames wait to be sent."""
        if self._is_resumed and not self._urgent:
            self._urgent.append(encode_frame(PING))

    def notice(self, text: str) -> None:
        """Send a sentence for the user's terminal. Drop it if NOTICES_MAX wait already."""
        if len(self._notices) < NOTICES_MAX:
            self._notices.append(text)

    def close(self, reason: str) -> None:
        """End the session for this reason. `next_frames` returns the CLOSE once, then nothing."""
        if self.closing is None:
            self.closing = reason

    def next_frames(self, bytes_max: int) -> list[bytes]:
        """Return encoded frames to send on the current connection, in order.

        The list is empty if no frame can be sent now. New numbered frames are built only while less
        than REPLAY_BYTES_MAX are unacknowledged. The frames exceed `bytes_max` by less than a
        frame.
        """
        parts: list[bytes] = []
        size = 0
        while size < bytes_max:
            frame = self._next_frame()
            if frame is None:
                break
            parts.append(frame)
            size += len(frame)
        return parts

    def _next_frame(self) -> bytes | None:
        if self._is_closed:
            return None
        if self._urgent:
            return self._urgent.popleft()
        if self.closing is not None:
            self._is_closed = True
            return encode_text(CLOSE, self.closing)
        if not self._is_resumed:
            return None
        repeated = self._replay.next_repeated()
        if repeated is not None:
            return repeated
        if self._replay.memory_bytes >= REPLAY_BYTES_MAX:
            return None
        if self._notices:
            frame: bytes | None = encode_text(NOTICE, self._notices.popleft())
        else:
            frame = self.streams.next_frame()
        if frame is not None:
            self._replay.append(frame)
        return frame

    def _receive_frame(self, frame: Frame) -> SessionEvent | None:
        if frame.kind == CLOSE:
            self._is_closed = True
            return SessionClosed(decode_text(frame.payload))
        if frame.kind == HELLO:
            return self._receive_hello(decode_hello(frame.payload))
        if not self._is_resumed:
            raise ProtocolError(f"the peer's first frame is {frame.kind!r}; expected a HELLO")
        if frame.kind in NUMBERED:
            self._received += frame.size
            if frame.kind != NOTICE:
                return self.streams.receive(frame)
            if self._is_agent:
                raise ProtocolError("the user's end sent a notice")
            return NoticeReceived(decode_text(frame.payload))
        if frame.kind == ACK:
            self._replay.acknowledge(decode_ack(frame.payload))
        elif frame.kind == PING:
            self._answer_ping()
        else:
            assert frame.kind == PONG
        return None

    def _receive_hello(self, hello: Hello) -> SessionResumed:
        if self._is_resumed:
            raise ProtocolError("the peer sent a second HELLO")
        if self._session is None and hello.is_new:
            self._session = hello.session
        if hello.session != self._session:
            raise UnknownSession(FORGOTTEN_SESSION)
        if self._is_agent:
            self._send_hello()
        self._replay.rewind(hello.received)
        is_first = not self._knows_peer
        self._knows_peer = self._is_resumed = True
        return SessionResumed(is_first)

    def _send_hello(self) -> None:
        assert self._session is not None
        hello = Hello(self._session, self._received, is_new=not self._knows_peer)
        self._urgent.append(encode_hello(hello))
        self._acked = self._received

    def _answer_ping(self) -> None:
        """Send a PONG, unless the peer's earlier PINGs have unsent answers."""
        if len(self._urgent) <= NOTICES_MAX:
            self._urgent.append(encode_frame(PONG))
