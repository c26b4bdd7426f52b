"""A writer of TensorBoard event files that does not need TensorBoard.

The format is TensorFlow's: a file of TFRecords (tensorflow/core/lib/io/record_writer.h), each an
`Event` message (event.proto) whose `Summary` contains scalars. A record consists of four parts: the
length of the data as 8 little-endian bytes, the masked CRC-32C of the length, the data, and the
masked CRC-32C of the data.
"""

from __future__ import annotations

import math
import os
import struct
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from detcloud.core.one_time_warning import OneTimeWarning
from detcloud.shared.json_values import to_float

PAUSE_SECONDS = 0.2
CLOSE_SECONDS_MAX = 5.0
_VERSION = b"brain.Event:2"
_SESSION_START = 1
# The Castagnoli polynomial, its bits reversed.
_POLYNOMIAL = 0x82F63B78
_MASK_DELTA = 0xA282EAD8
# Wire types of protobuf, which define the encoding of a field's value.
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class EventWriter:
    """Appends the scalars of reports to an event file in `folder`, created at the first report.

    `name` distinguishes several writers in a folder. With `discarded_from`, TensorBoard hides the
    events of earlier files from this step on, because that work was lost.

    A thread writes soon after each report. The folder may be on another machine, and a report must
    not slow the training down (docs/benchmarks.md, `gangs`). If a report cannot be written, the
    first failure prints a warning, the report is omitted, and training continues.
    """

    def __init__(self, folder: Path, name: str, discarded_from: int | None = None) -> None:
        """Create the writer. Create no file, and start no thread before the first report."""
        self.folder = folder
        self._discarded_from = discarded_from
        self._name = name
        self._descriptor: int | None = None
        self._warning = OneTimeWarning()
        self._pending: deque[tuple[float, int, dict[str, float]]] = deque()
        self._has_pending = threading.Event()
        self._is_closing = threading.Event()
        self._writing = threading.Lock()
        self._thread: threading.Thread | None = None

    def add_scalars(self, group: str, step: int, metrics: Mapping[str, Any]) -> None:
        """Queue every number of `metrics` under the tag GROUP/NAME; ignore other values.

        Start the writing thread at the first call with a number. Write nothing here.
        """
        scalars = {f"{group}/{name}": value for name, value in metrics.items() if _is_number(value)}
        if not scalars:
            return
        self._pending.append((time.time(), step, scalars))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="event-writer", daemon=True)
            self._thread.start()
        if not self._has_pending.is_set():
            self._has_pending.set()

    def flush(self) -> None:
        """Write the queued scalars now. Failures are only printed."""
        with self._writing:
            while self._pending:
                self._write(*self._pending.popleft())

    def close(self) -> None:
        """Write the queued scalars and close the file. Do nothing without a file.

        If the writing thread needs more than CLOSE_SECONDS_MAX, return with the file open.
        """
        self._is_closing.set()
        self._has_pending.set()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS_MAX)
            if self._thread.is_alive():
                return
            self._thread = None
        self.flush()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _run(self) -> None:
        """Write the queued scalars, at most every PAUSE_SECONDS, until `close`."""
        while not self._is_closing.is_set():
            self._has_pending.wait()
            self._has_pending.clear()
            self.flush()
            # Wake up once for all reports of this time.
            self._is_closing.wait(PAUSE_SECONDS)

    def _write(self, wall_time: float, step: int, scalars: Mapping[str, float]) -> None:
        """Write an event, and open the file before the first. Print a failure, once."""
        try:
            if self._descriptor is None:
                self._descriptor = self._open(wall_time)
            self._append(scalar_event(wall_time, step, scalars))
        except Exception as error:
            self._warning.show(
                f"metrics could not be written for TensorBoard: {error}; training goes on"
            )

    def _open(self, wall_time: float) -> int:
        """Open or create the event file, and return the descriptor.

        A new file begins with its version and, with `discarded_from`, a restart event. Raises
        OSError.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads the files of a folder in the order of the names.
        path = self.folder / f"events.out.tfevents.{int(wall_time):010d}.{self._name}"
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o644)
        try:
            if os.fstat(descriptor).st_size == 0:
                begin = tfrecord(version_event(wall_time))
                if self._discarded_from is not None:
                    begin += tfrecord(restart_event(wall_time, self._discarded_from))
                _write_whole(descriptor, begin)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    def _append(self, event: bytes) -> None:
        """Append an event as a record. Raises OSError, and then appends nothing."""
        assert self._descriptor is not None
        _write_whole(self._descriptor, tfrecord(event))


def tfrecord(data: bytes) -> bytes:
    """Return `data` framed as a TFRecord."""
    length = struct.pack("<Q", len(data))
    return length + _checksum(length) + data + _checksum(data)


def version_event(wall_time: float) -> bytes:
    """Return the first event of a file. `wall_time` is in seconds since 1970."""
    return _field(1, struct.pack("<d", wall_time), _FIXED64) + _field(3, _VERSION, _BYTES)


def restart_event(wall_time: float, step: int) -> bytes:
    """Return an event that makes TensorBoard hide events of earlier files from `step` on.

    It is a session log with the status START, as TensorFlow writes after a restart.
    """
    session_log = _field(1, _varint(_SESSION_START), _VARINT)
    return (
        _field(1, struct.pack("<d", wall_time), _FIXED64)
        + _field(2, _varint(step), _VARINT)
        + _field(7, session_log, _BYTES)
    )


def scalar_event(wall_time: float, step: int, scalars: Mapping[str, float]) -> bytes:
    """Return an event with all `scalars` by tag, in single precision.

    `wall_time` is in seconds since 1970.
    """
    summary = b"".join(
        _field(
            1,
            _field(1, tag.encode("utf-8", "replace"), _BYTES)
            + _field(2, _single_precision(value), _FIXED32),
            _BYTES,
        )
        for tag, value in scalars.items()
    )
    return (
        _field(1, struct.pack("<d", wall_time), _FIXED64)
        + _field(2, _varint(step), _VARINT)
        + _field(5, summary, _BYTES)
    )


def crc32c(data: bytes) -> int:
    """Return the CRC-32 of `data` with Castagnoli's polynomial, which zlib lacks."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _is_number(value: object) -> bool:
    """Return whether a value is an int or float, but no bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _write_whole(descriptor: int, data: bytes) -> None:
    """Append all of `data` to the file or nothing, because readers stop at an incomplete record.

    Raises OSError if not all of the data could be written.
    """
    size = os.fstat(descriptor).st_size
    try:
        written = os.write(descriptor, data)
        if written != len(data):
            raise OSError(f"{written} of {len(data)} bytes were written")
    except OSError:
        os.ftruncate(descriptor, size)
        raise


def _field(number: int, content: bytes, wire_type: int) -> bytes:
    """Encode a field of a protobuf message: the number, the type, and the encoded content."""
    key = _varint(number << 3 | wire_type)
    return key + (_varint(len(content)) if wire_type == _BYTES else b"") + content


def _varint(value: int) -> bytes:
    """Encode a number as a varint: seven bits per byte, lowest first, a set high bit before
    more.
    """
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _single_precision(value: float) -> bytes:
    """Encode a number as four bytes. A number that is too large becomes an infinity."""
    number = to_float(value)
    try:
        return struct.pack("<f", number)
    except OverflowError:
        return struct.pack("<f", math.copysign(math.inf, number))


def _checksum(data: bytes) -> bytes:
    """Return the masked CRC-32C of `data` as four bytes."""
    crc = crc32c(data)
    masked = ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF
    return struct.pack("<I", masked)


def _checksum_table() -> Iterator[int]:
    """Yield the 256 entries of `crc32c`'s table: the remainder of each byte, without inversions."""
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
        yield crc


_TABLE = tuple(_checksum_table())
