"""A file of a trial's reports in JSON, a line each (docs/trial-directory.md)."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

from detcloud.shared.errors import DetcloudError
from detcloud.shared.json_values import to_json_object

LINE_BYTES_MAX = 256 * 1024
_encode_json = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class ReportFile:
    """A report file, to which each line is appended with a single write. Thread-safe.

    The constructor creates a missing file, of mode 0644 less the umask, and missing folders. It
    keeps the content of an existing file. It raises OSError if that fails or `path` is a link. A
    report should take at most 50 us (docs/benchmarks.md, `gangs`), so system calls with a known
    result are avoided.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o644)
        self._offset = os.fstat(self._descriptor).st_size
        # Whether the file may end with half a line. False after a complete write of this object.
        self._may_be_torn = True
        self._first_write = threading.Lock()

    def append(self, kind: str, **fields: object) -> None:
        """Append a report of this kind, with the current time and the fields, as a line of JSON.

        Values are converted as `to_json_value` does, so NaN becomes "NaN". A field `time_ms`
        replaces the current time. The line is written at once, but not flushed to disk. Raise
        DetcloudError for a value that has no JSON form or is nested too deep, for a line over 256
        KiB, and if the line cannot be written completely. Only in the last case, a part may stay in
        the file; the next report then begins on a new line. Nothing is repeated.
        """
        time_ms = time.time_ns() // 1_000_000
        plain = to_json_object(fields, kind)
        line = _encode_json({"kind": kind, "time_ms": time_ms, **plain}).encode() + b"\n"
        if len(line) > LINE_BYTES_MAX:
            raise DetcloudError(
                f"a {kind!r} report of {len(line)} bytes was refused, the limit is "
                f"{LINE_BYTES_MAX}: report fewer or smaller values, keep large ones in a checkpoint"
                f"; {_largest_value(plain)}"
            )
        try:
            written, line = self._write_on_a_new_line(line)
        except OSError as error:
            raise DetcloudError(
                f"a {kind!r} report could not be written to {self.path}: {error.strerror}; free "
                "space there, then the trial can go on from its latest checkpoint"
            ) from error
        if written != len(line):
            raise DetcloudError(
                f"{written} of the {len(line)} bytes of a {kind!r} report were written to "
                f"{self.path}: is the disk full?"
            )

    def _write_on_a_new_line(self, line: bytes) -> tuple[int, bytes]:
        """Write the line with one system call, after a newline if the file ends with half a line.

        Return the number of written bytes, and the bytes that the call was to write. Raise OSError
        if the file cannot be read or written.
        """
        if not self._may_be_torn:
            return self._write(line), line
        # Another thread's line that is only half in the file is not torn.
        with self._first_write:
            if self._may_be_torn:
                line = self._separator_after_torn_line() + line
            written = self._write(line)
            self._may_be_torn = written != len(line)
        return written, line

    def _write(self, line: bytes) -> int:
        try:
            written = os.write(self._descriptor, line)
        except BaseException:
            # An interruption may come after a part was written.
            self._may_be_torn = True
            raise
        if written != len(line):
            self._may_be_torn = True
        return written

    def _separator_after_torn_line(self) -> bytes:
        """Return a newline if the file does not end with a newline, else b"". b"" if it is empty.

        A full disk may have cut the last line. The reader then skips only the cut line, and not the
        next line as well. Raise OSError if the file cannot be read.
        """
        size = os.fstat(self._descriptor).st_size
        torn = size > 0 and os.pread(self._descriptor, 1, size - 1) != b"\n"
        return b"\n" if torn else b""

    def has_exit(self) -> bool:
        """Whether any process has appended an `exit` line since this object was created.

        The file is opened again, also after `close`, and read from the place that was its end when
        this object was created. Malformed lines are skipped. Raise OSError if the file was deleted.
        """
        with self.path.open("rb") as report:
            report.seek(self._offset)
            return any(_is_exit(line) for line in report)

    @property
    def is_closed(self) -> bool:
        """Whether the file was closed."""
        return self._descriptor < 0

    def close(self) -> None:
        """Close the file. A later append raises DetcloudError, and a second close OSError."""
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)


def _largest_value(fields: dict[str, Any]) -> str:
    """Return a clause for an error with the name and size of a report's largest value.

    Objects are searched one level deep. `fields` must contain a value.
    """
    named = [(name, item) for name, item in fields.items() if not isinstance(item, dict)]
    for group, item in fields.items():
        if isinstance(item, dict):
            named += [(f"{group}.{name}", value) for name, value in item.items()]
    size, name = max((len(_encode_json(value)), name) for name, value in named)
    return f"the largest value is {name:.80}, of {size:,} bytes"


def _is_exit(line: bytes) -> bool:
    # Other writers may format the JSON differently, so only the word is searched for.
    if b'"exit"' not in line:
        return False
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(entry, dict) and entry.get("kind") == "exit"
