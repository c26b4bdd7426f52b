"""The streams of a session of a tunnel, with a window for each stream. No I/O.

A sender sends only bytes that the receiver allowed. So a reader that does not read holds at most
one window of memory here, and no other stream waits for that reader. Windows of busy streams grow
while the session's growth budget lasts.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import islice

from detcloud.shared.tunnel.frames import (
    CREDIT,
    DATA,
    END,
    HEAD_BYTES,
    OPEN,
    PAYLOAD_BYTES_MAX,
    RESET,
    SERVICE,
    Frame,
    ProtocolError,
    decode_credit,
    decode_port,
    decode_service,
    encode_credit,
    encode_data,
    encode_frame,
    encode_port,
    encode_service,
)

STREAMS_MAX = 1_024
"""The most open streams of a session."""
WINDOW_BYTES = 65_536
"""The window of a new stream, in each direction."""
WINDOW_BYTES_MAX = 2 << 20
"""The most bytes to which the window of a busy stream grows."""
GROWTH_BYTES_MAX = 8 << 20
"""The most bytes by which all windows of a session grow together."""
DATA_BYTES = PAYLOAD_BYTES_MAX - HEAD_BYTES
"""The bytes of a DATA frame that fills four records of TLS."""
OUTGOING_BYTES_MAX = 2 * DATA_BYTES
"""The most bytes of a stream that wait to be sent."""
REFUSALS_MAX = 1_024
"""The most unsent RESETs. A peer that causes more breaks the protocol."""
PARTS_MAX = 64
"""The most parts of received bytes that a caller gets at once."""
_CREDIT_MAX = 1 << 30
_MERGED_BYTES_MAX = 4_096


class ResetReason(IntEnum):
    """The reason of a RESET."""

    CLOSED = 0
    """The connection at the sender's end broke, or its program closed it."""
    REFUSED = 1
    """No program listens on the port."""
    FOREIGN = 2
    """A program outside the trial listens on the port."""
    NOT_ALLOWED = 3
    """The tunnel is not for this port or service."""
    TOO_MANY = 4
    """The session has STREAMS_MAX open streams."""
    NO_ROOM = 5
    """The machine of the trial can open no more connections now."""
    UNKNOWN_SERVICE = 6
    """The agent does not know the service, because the agent is older than the user's end."""
    NOT_READY = 7
    """The service is not available yet, or not for this kind of trial."""


@dataclass(frozen=True, slots=True)
class StreamOpened:
    """The peer opened a stream to a port."""

    stream: int
    port: int


@dataclass(frozen=True, slots=True)
class ServiceOpened:
    """The peer opened a stream to a service of the allocation."""

    stream: int
    service: str
    """The name, which may be unknown."""


@dataclass(frozen=True, slots=True)
class StreamChanged:
    """A stream has received bytes or the end of bytes, or may send more bytes."""

    stream: int


@dataclass(frozen=True, slots=True)
class StreamReset:
    """The peer ended a stream in both directions. The stream is forgotten."""

    stream: int
    reason: int
    """A value of `ResetReason`, or an unknown number of a later version."""


StreamEvent = StreamOpened | ServiceOpened | StreamChanged | StreamReset


@dataclass(slots=True)
class _Stream:
    """An open stream."""

    number: int
    unsent_opening: bytes | None = None
    """The encoded OPEN or SERVICE that was not sent yet."""
    credit: int = WINDOW_BYTES
    """The number of bytes that the peer still allows."""
    outgoing: deque[bytes] = field(default_factory=deque)
    """The bytes that wait to be sent."""
    outgoing_bytes: int = 0
    """The number of bytes that wait to be sent."""
    end_wanted: bool = False
    end_sent: bool = False
    incoming: deque[bytes] = field(default_factory=deque)
    """The received bytes that the caller has not consumed."""
    incoming_bytes: int = 0
    window: int = WINDOW_BYTES
    """The most bytes that may be received and not consumed."""
    allowed: int = WINDOW_BYTES
    """The number of bytes that the peer may still send."""
    end_received: bool = False
    is_ready: bool = False
    """Whether the stream waits in the queue of streams with frames to send."""

    @property
    def owed_bytes(self) -> int:
        """The number of bytes by which the peer's allowance is below the window."""
        return self.window - self.allowed - self.incoming_bytes

    @property
    def has_credit_to_send(self) -> bool:
        """Whether a CREDIT is worth a frame: half of the window or more is owed."""
        return not self.end_received and self.owed_bytes * 2 >= self.window

    @property
    def has_frame(self) -> bool:
        """Whether the stream can send a frame now."""
        return (
            self.unsent_opening is not None
            or self.has_credit_to_send
            or bool(self.outgoing and self.credit)
            or (self.end_wanted and not self.end_sent and not self.outgoing)
        )

    @property
    def is_over(self) -> bool:
        """Whether both directions have ended, and all received bytes are consumed."""
        return self.end_sent and self.end_received and not self.incoming


class Multiplexer:
    """The open streams of a session.

    Received frames go to `receive`, whose events name the streams to look at. Frames to send come
    from `next_frame`, in turn from all streams. All memory is bounded by the constants of this
    module, for any peer.
    """

    def __init__(self, *, accepts: bool) -> None:
        """Create a multiplexer without streams.

        Args:
            accepts: whether the peer opens streams. Otherwise this end opens streams.
        """
        self._accepts = accepts
        self._streams: dict[int, _Stream] = {}
        self._last_number = 0
        self._ready: deque[int] = deque()
        self._resets: deque[tuple[int, ResetReason]] = deque()
        self._growth_left = GROWTH_BYTES_MAX

    def __len__(self) -> int:
        """Return the number of open streams."""
        return len(self._streams)

    def is_open(self, stream: int) -> bool:
        """Whether the stream is open in a direction, or has unconsumed bytes."""
        return stream in self._streams

    def open_stream(self, port: int) -> int | None:
        """Open a stream to a port of the peer, and return the stream's number.

        Return None if STREAMS_MAX streams are open.
        """
        return self._open(encode_port(self._last_number + 1, port))

    def open_service(self, service: str) -> int | None:
        """Open a stream to a service of the peer's allocation, and return the stream's number.

        The name has at most SERVICE_BYTES_MAX bytes. Return None if STREAMS_MAX streams are open.
        """
        return self._open(encode_service(self._last_number + 1, service))

    def sendable(self, stream: int) -> int:
        """Return the number of bytes that `send` accepts now. 0 for a closed stream.

        The number is at most OUTGOING_BYTES_MAX. It grows after an event `StreamChanged`, and after
        `next_frame` has returned frames.
        """
        found = self._streams.get(stream)
        if found is None or found.end_wanted:
            return 0
        return max(0, min(OUTGOING_BYTES_MAX, found.credit) - found.outgoing_bytes)

    def send(self, stream: int, data: bytes) -> None:
        """Send bytes of a stream: at most `sendable` bytes, which is not checked."""
        found = self._streams[stream]
        _append(found.outgoing, data)
        found.outgoing_bytes += len(data)
        self._note_ready(found)

    def end(self, stream: int) -> None:
        """Announce that this end sends no more bytes. Do nothing for a closed stream."""
        found = self._streams.get(stream)
        if found is not None:
            found.end_wanted = True
            self._note_ready(found)

    def reset(self, stream: int, reason: ResetReason) -> None:
        """End a stream in both directions, and forget all bytes of the stream.

        Do nothing for a closed stream.
        """
        found = self._streams.get(stream)
        if found is None:
            return
        self._forget(found)
        if found.unsent_opening is None:
            self._resets.append((stream, reason))

    def received_parts(self, stream: int) -> list[bytes]:
        """Return the first received bytes that are not consumed, in at most PARTS_MAX parts.

        Return an empty list for a closed stream.
        """
        found = self._streams.get(stream)
        return list(islice(found.incoming, PARTS_MAX)) if found is not None else []

    def consume(self, stream: int, count: int) -> None:
        """Drop the first `count` bytes of the result of `received_parts`.

        The peer may then send more bytes. `count` is at most the length of these bytes.
        """
        found = self._streams[stream]
        _take(found.incoming, count)
        found.incoming_bytes -= count
        if found.is_over:
            self._forget(found)
            return
        self._note_ready(found)

    def has_ended(self, stream: int) -> bool:
        """Whether the peer sends no more bytes, and all received bytes are consumed.

        True for a closed stream.
        """
        found = self._streams.get(stream)
        return found is None or (found.end_received and not found.incoming)

    def receive(self, frame: Frame) -> StreamEvent | None:
        """Apply a received frame of a stream, and return the resulting event.

        Frames for a closed stream are ignored, because they may have been sent before the peer
        learned of the end. Raise ProtocolError if the peer breaks a rule.
        """
        if frame.kind in (OPEN, SERVICE):
            return self._receive_open(frame)
        if frame.stream > self._last_number:
            raise ProtocolError(f"the peer sent bytes of stream {frame.stream}, which is not open")
        stream = self._streams.get(frame.stream)
        if stream is None:
            return None
        if frame.kind == DATA:
            _receive_data(stream, frame.payload)
        elif frame.kind == CREDIT:
            self._receive_credit(stream, decode_credit(frame.payload))
        elif frame.kind == END:
            if stream.end_received:
                raise ProtocolError(f"the peer ended stream {stream.number} twice")
            stream.end_received = True
        elif frame.kind == RESET:
            self._forget(stream)
            return StreamReset(stream.number, frame.payload[0])
        if stream.is_over:
            self._forget(stream)
        return StreamChanged(stream.number)

    def next_frame(self) -> bytes | None:
        """Return the next encoded frame to send. Return None if no stream can send a frame.

        A stream whose last direction ends with the frame is forgotten.
        """
        if self._resets:
            number, reason = self._resets.popleft()
            return encode_frame(RESET, number, bytes([reason]))
        while self._ready:
            stream = self._streams.get(self._ready.popleft())
            if stream is None:
                continue
            stream.is_ready = False
            frame = self._build_frame(stream)
            if frame is None:
                continue
            if stream.is_over:
                self._forget(stream)
            else:
                self._note_ready(stream)
            return frame
        return None

    def _open(self, opening: bytes) -> int | None:
        """Open the next stream with the encoded frame `opening`. Return None at STREAMS_MAX."""
        assert not self._accepts
        if len(self._streams) >= STREAMS_MAX:
            return None
        self._last_number += 1
        stream = _Stream(self._last_number, unsent_opening=opening)
        self._streams[stream.number] = stream
        self._note_ready(stream)
        return stream.number

    def _receive_open(self, frame: Frame) -> StreamOpened | ServiceOpened | None:
        """Add a stream that the peer opened, or refuse the stream if too many are open."""
        if not self._accepts:
            raise ProtocolError("the peer opened a stream; only the user's end opens streams")
        if frame.stream <= self._last_number:
            raise ProtocolError(
                f"the peer opened stream {frame.stream} after stream {self._last_number}"
            )
        event: StreamOpened | ServiceOpened
        if frame.kind == OPEN:
            event = StreamOpened(frame.stream, decode_port(frame.payload))
        else:
            event = ServiceOpened(frame.stream, decode_service(frame.payload))
        self._last_number = frame.stream
        if len(self._resets) >= REFUSALS_MAX:
            raise ProtocolError(f"the peer opened {REFUSALS_MAX} refused streams without a pause")
        if len(self._streams) >= STREAMS_MAX:
            self._resets.append((frame.stream, ResetReason.TOO_MANY))
            return None
        self._streams[frame.stream] = _Stream(frame.stream)
        return event

    def _receive_credit(self, stream: _Stream, count: int) -> None:
        """Allow more bytes of a stream to be sent."""
        stream.credit += count
        if count == 0 or stream.credit > _CREDIT_MAX:
            raise ProtocolError(f"the peer allows {stream.credit} bytes of stream {stream.number}")
        self._note_ready(stream)

    def _build_frame(self, stream: _Stream) -> bytes | None:
        """Return the stream's next frame, or None if the stream cannot send a frame."""
        if stream.unsent_opening is not None:
            opening, stream.unsent_opening = stream.unsent_opening, None
            return opening
        if stream.has_credit_to_send:
            self._grow_window(stream)
            owed_bytes = stream.owed_bytes
            stream.allowed += owed_bytes
            return encode_credit(stream.number, owed_bytes)
        count = min(stream.outgoing_bytes, stream.credit, DATA_BYTES)
        if count:
            stream.outgoing_bytes -= count
            stream.credit -= count
            return encode_data(stream.number, _take(stream.outgoing, count))
        if stream.has_frame:
            stream.end_sent = True
            return encode_frame(END, stream.number)
        return None

    def _grow_window(self, stream: _Stream) -> None:
        """Double the window of a busy stream, within the session's budget."""
        growth = min(stream.window, WINDOW_BYTES_MAX - stream.window, self._growth_left)
        stream.window += growth
        self._growth_left -= growth

    def _note_ready(self, stream: _Stream) -> None:
        if stream.has_frame and not stream.is_ready:
            stream.is_ready = True
            self._ready.append(stream.number)

    def _forget(self, stream: _Stream) -> None:
        del self._streams[stream.number]
        self._growth_left += stream.window - WINDOW_BYTES


def _receive_data(stream: _Stream, data: bytes) -> None:
    """Store received bytes. Raise ProtocolError beyond the allowance or after the end."""
    if stream.end_received:
        raise ProtocolError(f"the peer sent bytes of stream {stream.number} after the end")
    if len(data) > stream.allowed:
        raise ProtocolError(
            f"the peer sent {len(data)} bytes of stream {stream.number}; {stream.allowed} were "
            "allowed"
        )
    stream.allowed -= len(data)
    stream.incoming_bytes += len(data)
    _append(stream.incoming, data)


def _append(queue: deque[bytes], data: bytes) -> None:
    """Add bytes to a queue, and merge short pieces.

    A program or peer that sends single bytes must not cause an object for each byte.
    """
    if queue and len(queue[-1]) + len(data) <= _MERGED_BYTES_MAX:
        data = queue.pop() + data
    queue.append(data)


def _take(queue: deque[bytes], count: int) -> list[bytes]:
    """Remove the first `count` bytes from a queue, and return the bytes in parts.

    The queue must have `count` bytes.
    """
    taken: list[bytes] = []
    while count:
        first = queue.popleft()
        if len(first) > count:
            queue.appendleft(first[count:])
            first = first[:count]
        taken.append(first)
        count -= len(first)
    return taken
