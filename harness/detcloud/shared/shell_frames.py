"""The frames between a shell on the cluster and the terminal that shows it.

A connection begins with one line of JSON, a `Greeting`. From then on both sides send frames: a
letter, the length of the payload in four bytes, and the payload.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass

DATA = b"d"
"""Input to the shell, output of it; of a terminal or of a program without one."""
ERRORS = b"f"
"""What a program without a terminal wrote to its standard error."""
SIZE = b"s"
"""To the shell: rows and columns of the window, as `pack_size` has them."""
END = b"e"
"""To a program without a terminal: the input is over."""
EXIT = b"x"
"""From the shell: the exit code of its program, as `pack_exit_code` has it."""

FRAME_BYTES_MAX = 65_536
GREETING_BYTES_MAX = 65_536
_HEAD = struct.Struct(">cI")
_SIZE = struct.Struct(">HH")
_EXIT_CODE = struct.Struct(">i")
_CELLS_MAX = 65_535


@dataclass(frozen=True)
class Greeting:
    """The first words of a terminal: the token, itself, and the program, which may be missing."""

    token: str
    terminal: str
    """Its type, as in TERM; "" for a program without a terminal."""
    rows: int
    columns: int
    program: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """Return the line that a connection begins with."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> Greeting:
        """Read a line. ValueError: it is not one of `encode`."""
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
    """Divides what comes over a connection into frames."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, received: bytes) -> list[tuple[bytes, bytes]]:
        """Return the kinds and payloads of the frames that are complete now.

        Raises ValueError for a frame of more than FRAME_BYTES_MAX.
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
    """Return a frame of at most FRAME_BYTES_MAX bytes of payload."""
    return _HEAD.pack(kind, len(payload)) + payload


def pack_size(rows: int, columns: int) -> bytes:
    """Return the payload of SIZE."""
    return _SIZE.pack(_cells(rows), _cells(columns))


def unpack_size(payload: bytes) -> tuple[int, int]:
    """Return rows and columns. ValueError: it is no payload of SIZE."""
    if len(payload) != _SIZE.size:
        raise ValueError(f"a size has {_SIZE.size} bytes, not {len(payload)}")
    rows, columns = _SIZE.unpack(payload)
    return int(rows), int(columns)


def pack_exit_code(code: int) -> bytes:
    """Return the payload of EXIT."""
    return _EXIT_CODE.pack(code)


def unpack_exit_code(payload: bytes) -> int:
    """Return the exit code. ValueError: it is no payload of EXIT."""
    if len(payload) != _EXIT_CODE.size:
        raise ValueError(f"an exit code has {_EXIT_CODE.size} bytes, not {len(payload)}")
    return int(_EXIT_CODE.unpack(payload)[0])


def _cells(value: object) -> int:
    """Return a number of rows or columns, within what a terminal can have."""
    return min(max(value, 0), _CELLS_MAX) if isinstance(value, int) else 0
