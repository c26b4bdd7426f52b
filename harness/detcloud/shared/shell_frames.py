"""The frames between a shell on the cluster and the user's terminal.

A connection begins with a line of JSON, a `Greeting`. Then both sides send frames: a letter, the
length of the payload in four bytes, and the payload.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass

DATA = b"d"
"""The kind of frames with input to the shell or output of the shell."""
ERRORS = b"f"
"""The kind of frames with the standard error of a program without a terminal."""
SIZE = b"s"
"""The kind of frames to the shell with the window's size, see `pack_size`."""
END = b"e"
"""The kind of the frame that ends the input of a program without a terminal."""
EXIT = b"x"
"""The kind of the frame with the exit code of the shell's program, see `pack_exit_code`."""

FRAME_BYTES_MAX = 65_536
GREETING_BYTES_MAX = 65_536
_HEAD = struct.Struct(">cI")
_SIZE = struct.Struct(">HH")
_EXIT_CODE = struct.Struct(">i")
_CELLS_MAX = 65_535


@dataclass(frozen=True)
class Greeting:
    """The first line that a user's terminal sends."""

    token: str
    """The token that allows the connection."""
    terminal: str
    """The terminal's type, as in TERM. "" for a program without a terminal."""
    rows: int
    columns: int
    program: tuple[str, ...] = ()
    """The words of the command to run. Empty for bash, or for sh if bash is missing."""

    def encode(self) -> bytes:
        """Return the greeting as a line of JSON in ASCII with a newline, of any length."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> Greeting:
        """Parse a line of `encode`, with or without the newline. Ignore unknown fields.

        Missing texts become "". Texts of another type are converted by `str`, so null becomes
        "None". Sizes are clamped to 0 to 65535, and missing or invalid sizes become 0. Raise
        ValueError if the line is no JSON object, or if `program` is missing or no list of texts. An
        empty list is valid.
        """
        try:
            fields = json.loads(line)
        except RecursionError:
            raise ValueError("a greeting is not nested") from None
        if not isinstance(fields, dict):
            raise ValueError("a greeting is an object")
        program = fields.get("program")
        if not isinstance(program, list) or not all(isinstance(word, str) for word in program):
            raise ValueError("a program is a list of words")
        return cls(
            str(fields.get("token", "")),
            str(fields.get("terminal", "")),
            _cells(fields.get("rows")),
            _cells(fields.get("columns")),
            tuple(program),
        )


class FrameReader:
    """A parser that divides the received bytes of a connection into frames."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, received: bytes) -> list[tuple[bytes, bytes]]:
        """Add received bytes, and return the kind and payload of each newly complete frame.

        Keep an incomplete frame for the next call. Kinds are not checked. Raise ValueError as soon
        as the head of a frame announces a payload of more than FRAME_BYTES_MAX bytes. The complete
        frames of this call are then lost, and every later call raises ValueError again.
        """
        self._rest += received
        frames: list[tuple[bytes, bytes]] = []
        while len(self._rest) >= _HEAD.size:
            kind, length = _HEAD.unpack_from(self._rest)
            if length > FRAME_BYTES_MAX:
                raise ValueError(f"a frame has {length} bytes, at most {FRAME_BYTES_MAX}")
            if len(self._rest) < _HEAD.size + length:
                break
            frames.append((kind, self._rest[_HEAD.size : _HEAD.size + length]))
            self._rest = self._rest[_HEAD.size + length :]
        return frames


def pack_frame(kind: bytes, payload: bytes = b"") -> bytes:
    """Return a frame of this kind, a single byte.

    The payload must have at most FRAME_BYTES_MAX bytes, which is not checked. Raise struct.error
    for a kind of another length.
    """
    return _HEAD.pack(kind, len(payload)) + payload


def pack_size(rows: int, columns: int) -> bytes:
    """Return the payload of a SIZE frame. Numbers outside 0 to 65535 are clamped.

    A value that is no integer becomes 0.
    """
    return _SIZE.pack(_cells(rows), _cells(columns))


def unpack_size(payload: bytes) -> tuple[int, int]:
    """Return rows and columns from the payload of a SIZE frame.

    Raise ValueError if the payload has a wrong length.
    """
    if len(payload) != _SIZE.size:
        raise ValueError(f"a size has {_SIZE.size} bytes, not {len(payload)}")
    rows, columns = _SIZE.unpack(payload)
    return int(rows), int(columns)


def pack_exit_code(code: int) -> bytes:
    """Return the payload of an EXIT frame.

    Raise struct.error unless the code is an integer that fits into 32 bits, with its sign.
    """
    return _EXIT_CODE.pack(code)


def unpack_exit_code(payload: bytes) -> int:
    """Return the exit code, which may be negative, from the payload of an EXIT frame.

    Raise ValueError if the payload has a wrong length.
    """
    if len(payload) != _EXIT_CODE.size:
        raise ValueError(f"an exit code has {_EXIT_CODE.size} bytes, not {len(payload)}")
    return int(_EXIT_CODE.unpack(payload)[0])


def _cells(value: object) -> int:
    """Return a number of rows or columns, clamped to 0 to 65535. 0 if `value` is no integer."""
    return min(max(value, 0), _CELLS_MAX) if isinstance(value, int) else 0
