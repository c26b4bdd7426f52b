"""WebSocket (RFC 6455) as a stream of bytes, without I/O.

Tunnels use WebSocket because proxies and clouds pass it on port 443. The borders of messages have
no meaning here, so the parser returns the payload of binary messages as it arrives and stores no
message. Its memory is bounded by the length of a frame's head and of a control frame.
"""

from __future__ import annotations

import base64
import hashlib
import struct
from dataclasses import dataclass

BINARY = 0x2
CLOSE = 0x8
PING = 0x9
PONG = 0xA
_CONTINUATION = 0x0

NORMAL = 1000
GOING_AWAY = 1001
PROTOCOL_ERROR = 1002
UNSUPPORTED = 1003
POLICY = 1008
TRY_AGAIN = 1013

CLEAR_MASK = bytes(4)
"""The mask of the ends' frames, which changes no byte.

A random mask keeps scripts of web pages from choosing the bytes that a proxy sees. The payload of
tunnels is TLS, whose bytes nobody can choose, and masks would cost most of the processor time.
"""
PAYLOAD_BYTES_MAX = 1 << 20
"""The longest frame that the parser accepts."""
# The masks that change no byte. Servers send no mask.
_CLEAR = (b"", CLEAR_MASK)
_CONTROL_BYTES_MAX = 125
_MASK_BYTES = 4
# From RFC 6455, section 1.3.
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class WebSocketError(ValueError):
    """The peer sent bytes that are not valid here. `code` is the status of the close frame."""

    def __init__(self, message: str, code: int = PROTOCOL_ERROR) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Control:
    """A received control frame: CLOSE, PING or PONG."""

    opcode: int
    payload: bytes

    @property
    def code(self) -> int | None:
        """The status of a CLOSE, or None for a CLOSE without a status."""
        return int.from_bytes(self.payload[:2]) if len(self.payload) >= 2 else None

    @property
    def reason(self) -> str:
        """The reason of a CLOSE as a line of printable characters."""
        text = self.payload[2:].decode(errors="replace")
        return "".join(one if one.isprintable() else "?" for one in text)


class WebSocketReader:
    """A parser that returns arriving payload and control frames of a connection at once."""

    def __init__(self, *, expects_masks: bool) -> None:
        """Create a parser.

        Args:
            expects_masks: whether the peer is the client, whose frames are masked.
        """
        self._expects_masks = expects_masks
        # The bytes of an incomplete head or control frame.
        self._rest = b""
        # The bytes of the current frame that were not received yet, and the frame's mask.
        self._left = 0
        self._mask = b""
        self._is_in_message = False
        self.is_closed = False
        """Whether a CLOSE was received. Later bytes are ignored."""

    def feed(self, received: bytes) -> list[memoryview | Control]:
        """Add received bytes, and return pieces of payload and control frames in order.

        The pieces are views of `received`, and keep its memory. Raise WebSocketError for bytes that
        RFC 6455 does not allow, for text messages, and for frames above PAYLOAD_BYTES_MAX.
        """
        found: list[memoryview | Control] = []
        data, place = self._rest + received if self._rest else received, 0
        view = memoryview(data)
        while not self.is_closed:
            if self._left:
                if place == len(data):
                    break
                piece = view[place : place + self._left]
                place += len(piece)
                found.append(self._unmask(piece))
                continue
            head = self._parse_head(data, place)
            if head is None:
                break
            place, control = head
            if control is not None:
                found.append(control)
        self._rest = b"" if self.is_closed else data[place:]
        return found

    def _unmask(self, piece: memoryview) -> memoryview:
        """Return the next bytes of the current frame's payload without the mask."""
        self._left -= len(piece)
        if self._mask in _CLEAR:
            return piece
        turn = len(piece) % _MASK_BYTES
        clear = memoryview(apply_mask(piece, self._mask))
        self._mask = self._mask[turn:] + self._mask[:turn]
        return clear

    def _parse_head(self, data: bytes, place: int) -> tuple[int, Control | None] | None:
        """Parse the head of the frame at a place of `data`, and a control frame as a whole.

        Return the place after the parsed bytes, and the control frame or None. Return None if
        bytes are missing.
        """
        if len(data) < place + 2:
            return None
        opcode, short = data[place] & 0x0F, data[place + 1] & 0x7F
        is_last, is_masked = bool(data[place] & 0x80), bool(data[place + 1] & 0x80)
        self._check_head(data[place], is_masked=is_masked, length=short)
        extra = {126: 2, 127: 8}.get(short, 0)
        begin = place + 2 + extra
        end = begin + (_MASK_BYTES if is_masked else 0)
        if len(data) < end:
            return None
        length = int.from_bytes(data[place + 2 : begin]) if extra else short
        _check_length(length, extra)
        mask = data[begin:end]
        if opcode >= CLOSE:
            if len(data) < end + length:
                return None
            payload = apply_mask(data[end : end + length], mask)
            return end + length, self._end_control(opcode, bytes(payload))
        self._left, self._mask, self._is_in_message = length, mask, not is_last
        return end, None

    def _end_control(self, opcode: int, payload: bytes) -> Control:
        """Return a control frame. After a CLOSE, no other frame is parsed."""
        if opcode == CLOSE:
            if len(payload) == 1:
                raise WebSocketError("a close frame has 1 byte; expected none, or a status")
            self.is_closed = True
        return Control(opcode, payload)

    def _check_head(self, first: int, *, is_masked: bool, length: int) -> None:
        """Raise WebSocketError for invalid bits, kinds, masks and fragments in a frame's head."""
        opcode = first & 0x0F
        if first & 0x70:
            raise WebSocketError("a frame has reserved bits; no extension was agreed")
        if is_masked != self._expects_masks:
            expected = "a mask" if self._expects_masks else "no mask"
            raise WebSocketError(f"a frame was expected to have {expected}")
        if opcode >= CLOSE:
            if opcode > PONG:
                raise WebSocketError(f"a frame has the unknown kind {opcode:#x}")
            if not first & 0x80 or length > _CONTROL_BYTES_MAX:
                raise WebSocketError("a control frame is fragmented or has more than 125 bytes")
            return
        if opcode not in (_CONTINUATION, BINARY):
            raise WebSocketError(f"a message has the kind {opcode:#x}, not binary", UNSUPPORTED)
        if (opcode == _CONTINUATION) != self._is_in_message:
            raise WebSocketError("a message begins inside another message, or continues none")


def encode(opcode: int, payload: bytes, mask: bytes = b"") -> bytes:
    """Return a frame. A client passes a `mask` of 4 bytes."""
    return b"".join((encode_head(opcode, len(payload), mask), apply_mask(payload, mask)))


def encode_head(opcode: int, length: int, mask: bytes = b"") -> bytes:
    """Return the head of a frame, with the mask. The payload of `length` bytes follows."""
    bit = 0x80 if mask else 0
    if length < 126:
        head = struct.pack(">BB", 0x80 | opcode, bit | length)
    elif length < 65_536:
        head = struct.pack(">BBH", 0x80 | opcode, bit | 126, length)
    else:
        head = struct.pack(">BBQ", 0x80 | opcode, bit | 127, length)
    return head + mask


def encode_close(code: int, reason: str = "", mask: bytes = b"") -> bytes:
    """Return a close frame. The reason is cut to the length of a control frame."""
    text = reason.encode()[: _CONTROL_BYTES_MAX - 2].decode(errors="ignore").encode()
    return encode(CLOSE, code.to_bytes(2) + text, mask)


def apply_mask(payload: bytes | memoryview, mask: bytes) -> bytes | memoryview:
    """Return the payload combined with the mask by XOR, or the unchanged payload without a mask.

    Large integers do this a hundred times faster than a loop over the bytes.
    """
    if mask in _CLEAR or not payload:
        return payload
    count = len(payload)
    repeated = (mask * (count // _MASK_BYTES + 1))[:count]
    return (int.from_bytes(payload) ^ int.from_bytes(repeated)).to_bytes(count)


def accept_key(key: str) -> str:
    """Return the header `Sec-WebSocket-Accept` for a client's `Sec-WebSocket-Key`."""
    return base64.b64encode(hashlib.sha1(key.encode() + _GUID).digest()).decode()


def _check_length(length: int, extra: int) -> None:
    """Raise WebSocketError for a length in too many bytes, and above PAYLOAD_BYTES_MAX."""
    least = {0: 0, 2: 126, 8: 65_536}[extra]
    if not least <= length <= PAYLOAD_BYTES_MAX:
        raise WebSocketError(f"a frame has {length} bytes; expected {least} to {PAYLOAD_BYTES_MAX}")
