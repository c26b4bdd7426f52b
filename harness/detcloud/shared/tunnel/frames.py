"""The frames of a tunnel: encoding, and a parser for received bytes.

A frame is a kind of one byte, a stream in four bytes, a length in four bytes, and the payload.
Numbers are big-endian. Frames are sent inside TLS between the two ends, so the relay sees none.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

OPEN = b"o"
"""Opens a stream to a port of the trial. The payload is the port. Only the user's end sends it."""
SERVICE = b"s"
"""Opens a stream to a service of the allocation. The payload is the name in UTF-8, see `services`.
Only the user's end sends it.
"""
DATA = b"d"
"""Bytes of a stream."""
CREDIT = b"c"
"""Allows the peer to send more bytes of a stream. The payload is the number of bytes."""
END = b"e"
"""The sender sends no more bytes of the stream. The other direction stays open."""
RESET = b"r"
"""Ends a stream in both directions. The payload is a reason, a value of `ResetReason`."""
NOTICE = b"n"
"""A sentence for the user's terminal, in UTF-8. Only the agent's end sends it."""
HELLO = b"h"
"""The first frame of each end on a connection, see `Hello`."""
ACK = b"a"
"""The offset up to which the sender has received numbered frames."""
PING = b"p"
"""Asks the peer for a PONG."""
PONG = b"q"
"""The answer to a PING."""
CLOSE = b"x"
"""Ends the session. The payload is the reason as a sentence in UTF-8."""

NUMBERED = frozenset((OPEN, SERVICE, DATA, CREDIT, END, RESET, NOTICE))
"""The kinds whose bytes count in the offset of a session, and are sent again after a break."""
KINDS = NUMBERED | {HELLO, ACK, PING, PONG, CLOSE}

PAYLOAD_BYTES_MAX = 65_536
TEXT_BYTES_MAX = 1_024
SERVICE_BYTES_MAX = 64
"""The longest name of a service in bytes."""
SESSION_BYTES = 16
VERSION = 1

_HEAD = struct.Struct(">cII")
_HELLO = struct.Struct(f">BB{SESSION_BYTES}sQ")
_PORT = struct.Struct(">H")
_COUNT = struct.Struct(">I")
_OFFSET = struct.Struct(">Q")

HEAD_BYTES = _HEAD.size
FRAME_BYTES_MAX = HEAD_BYTES + PAYLOAD_BYTES_MAX

# The valid lengths of the payload of each kind.
_LENGTHS = {
    OPEN: (_PORT.size, _PORT.size),
    SERVICE: (1, SERVICE_BYTES_MAX),
    DATA: (1, PAYLOAD_BYTES_MAX),
    CREDIT: (_COUNT.size, _COUNT.size),
    END: (0, 0),
    RESET: (1, 1),
    NOTICE: (1, TEXT_BYTES_MAX),
    HELLO: (_HELLO.size, _HELLO.size),
    ACK: (_OFFSET.size, _OFFSET.size),
    PING: (0, 0),
    PONG: (0, 0),
    CLOSE: (0, TEXT_BYTES_MAX),
}


class ProtocolError(ValueError):
    """The peer sent bytes that the protocol does not allow. The session cannot continue."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame of a tunnel."""

    kind: bytes
    stream: int
    """The number of the stream. 0 for frames that belong to no stream."""
    payload: bytes = b""

    @property
    def size(self) -> int:
        """The length of the encoded frame in bytes."""
        return HEAD_BYTES + len(self.payload)


@dataclass(frozen=True, slots=True)
class Hello:
    """The payload of a HELLO."""

    session: bytes
    """The id of the session, SESSION_BYTES random bytes that the user's end draws."""
    received: int
    """The offset up to which the sender has received numbered frames."""
    is_new: bool
    """Whether the sender has never received a HELLO of this session."""


class FrameReader:
    """A parser that divides the received bytes of a connection into frames."""

    def __init__(self) -> None:
        # The beginning of an incomplete frame.
        self._rest = bytearray()

    def feed(self, received: bytes | memoryview) -> list[Frame]:
        """Add received bytes, and return copies of the newly complete frames.

        At most FRAME_BYTES_MAX bytes of an incomplete frame are stored. Raise ProtocolError for an
        unknown kind or a wrong length, as soon as the head of the frame is complete.
        """
        frames, data = list[Frame](), memoryview(received)
        start = self._complete_rest(data, frames) if self._rest else 0
        while len(data) - start >= HEAD_BYTES:
            kind, stream, length = _HEAD.unpack_from(data, start)
            _check_head(kind, stream, length)
            end = start + HEAD_BYTES + length
            if len(data) < end:
                break
            frames.append(Frame(kind, stream, bytes(data[start + HEAD_BYTES : end])))
            start = end
        self._rest += data[start:]
        return frames

    def _complete_rest(self, data: memoryview, frames: list[Frame]) -> int:
        """Complete the stored frame with the first bytes of `data`.

        Append the complete frame to `frames`. Return the number of used bytes. An incomplete frame
        uses all bytes. Raise ProtocolError for an invalid head.
        """
        rest, used = self._rest, 0
        end = HEAD_BYTES
        while True:
            part = data[used : used + max(0, end - len(rest))]
            rest += part
            used += len(part)
            if len(rest) < end:
                return used
            kind, stream, length = _HEAD.unpack_from(rest)
            _check_head(kind, stream, length)
            end = HEAD_BYTES + length
            if len(rest) == end:
                with memoryview(rest) as whole:
                    frames.append(Frame(kind, stream, bytes(whole[HEAD_BYTES:])))
                rest.clear()
                return used


def encode_frame(kind: bytes, stream: int = 0, payload: bytes | memoryview = b"") -> bytes:
    """Return an encoded frame. The payload's length must be valid, which is not checked."""
    return b"".join((_HEAD.pack(kind, stream, len(payload)), payload))


def encode_data(stream: int, parts: Sequence[bytes]) -> bytes:
    """Return a DATA of all parts. The length of all parts must be valid, which is not checked."""
    return b"".join((_HEAD.pack(DATA, stream, sum(map(len, parts))), *parts))


def encode_hello(hello: Hello) -> bytes:
    """Return an encoded HELLO."""
    fields = VERSION, int(hello.is_new), hello.session, hello.received
    return encode_frame(HELLO, payload=_HELLO.pack(*fields))


def decode_hello(payload: bytes) -> Hello:
    """Return the fields of a HELLO. Raise ProtocolError for another version of the protocol."""
    version, is_new, session, received = _HELLO.unpack(payload)
    if version != VERSION:
        raise ProtocolError(f"the peer uses version {version} of the protocol, not {VERSION}")
    return Hello(session, received, bool(is_new))


def encode_port(stream: int, port: int) -> bytes:
    """Return an encoded OPEN."""
    return encode_frame(OPEN, stream, _PORT.pack(port))


def decode_port(payload: bytes) -> int:
    """Return the port of an OPEN. Raise ProtocolError for port 0."""
    (port,) = _PORT.unpack(payload)
    if port == 0:
        raise ProtocolError("the peer opened a stream to port 0; expected 1 to 65535")
    return int(port)


def encode_service(stream: int, service: str) -> bytes:
    """Return an encoded SERVICE. The name's length must be valid, which is not checked."""
    return encode_frame(SERVICE, stream, service.encode())


def decode_service(payload: bytes) -> str:
    """Return the name of a SERVICE. Raise ProtocolError for a name that is not UTF-8."""
    try:
        return payload.decode()
    except UnicodeDecodeError:
        raise ProtocolError("the peer opened a service whose name is not UTF-8") from None


def encode_credit(stream: int, count: int) -> bytes:
    """Return an encoded CREDIT."""
    return encode_frame(CREDIT, stream, _COUNT.pack(count))


def decode_credit(payload: bytes) -> int:
    """Return the number of bytes of a CREDIT."""
    return int(_COUNT.unpack(payload)[0])


def encode_ack(offset: int) -> bytes:
    """Return an encoded ACK."""
    return encode_frame(ACK, payload=_OFFSET.pack(offset))


def decode_ack(payload: bytes) -> int:
    """Return the offset of an ACK."""
    return int(_OFFSET.unpack(payload)[0])


def encode_text(kind: bytes, text: str) -> bytes:
    """Return an encoded NOTICE or CLOSE. The text is cut to TEXT_BYTES_MAX bytes."""
    cut = text.encode(errors="replace")[:TEXT_BYTES_MAX]
    return encode_frame(kind, payload=cut.decode(errors="ignore").encode())


def decode_text(payload: bytes) -> str:
    """Return the text of a NOTICE or CLOSE as a line without control characters.

    The text is for a terminal. Invalid UTF-8 and unprintable characters become `?`.
    """
    text = payload.decode(errors="replace")
    return "".join(one if one.isprintable() and one != "\ufffd" else "?" for one in text)


def _check_head(kind: bytes, stream: int, length: int) -> None:
    """Raise ProtocolError for an unknown kind, a wrong length or a missing or needless stream."""
    bounds = _LENGTHS.get(kind)
    if bounds is None:
        raise ProtocolError(f"the peer sent a frame of the unknown kind {kind!r}")
    least, most = bounds
    if not least <= length <= most:
        expected = f"{least}" if least == most else f"{least} to {most}"
        raise ProtocolError(f"a frame {kind!r} has {length} bytes; expected {expected}")
    has_stream = kind in NUMBERED and kind != NOTICE
    if has_stream != (stream > 0):
        expected = "a stream" if has_stream else "no stream"
        raise ProtocolError(f"a frame {kind!r} has stream {stream}; expected {expected}")
