"""The report files of a trial, with untrusted content.

The trial writes the folder out/. Files are therefore opened by directory descriptor without
following links, and only regular files with a single name are read. The bytes of a read and of a
file are limited. An `agent_warning` record replaces a line that is too long, nested too deep or no
JSON object. The record has the line's offset, so the acknowledged offset moves past the line, the
user sees the warning, and the agent stores nothing.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from detcloud.shared.json_depth import JSON_DEPTH_MAX, is_too_deep

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

LINE_BYTES_MAX = 256 * 1024
SCAN_BYTES = 4 << 20
# The bytes that are searched for the end of a too long line before they are skipped.
LOOK_BYTES_MAX = 16 << 20
# The part of a file that is read. A trial can create a sparse file of any size at no cost.
FILE_BYTES_MAX = 16 << 30
WRITERS_MAX = 64
ENTRIES_MAX = 4096
# Only ranks are accepted as writers, so that no trial can write reports as `agent`.
REPORT_NAME = re.compile(r"report-(0|[1-9][0-9]{0,4})\.jsonl")
OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
DEFERRABLE_KINDS = frozenset({"environment", "progress", "agent_warning", "rank_metrics"})
PRIORITY_KINDS = frozenset(
    {
        *("exit", "exited", "early_exit"),
        *("checkpoint", "checkpoint_damage", "checkpoint_load_failure", "checkpoint_intent"),
    }
)


@dataclass(frozen=True, slots=True)
class ReportLine:
    """A report line, or a warning in place of a skipped line."""

    offset: int
    """The byte offset after the line's newline."""
    raw: bytes
    """The line's JSON text."""
    fields: dict[str, Any]
    """The parsed JSON object."""
    warning: str = ""
    """The reason why the line was skipped. "" for an ordinary line."""
    skipped_bytes: int = 0
    """The bytes that the last search for the skipped line's end has read."""

    @property
    def kind(self) -> str:
        """The record's kind, or "" without a kind."""
        return str(self.fields.get("kind", ""))

    @property
    def is_urgent(self) -> bool:
        """Whether to send the line at once. Training metrics, progress and warnings may wait."""
        if self.kind == "metrics":
            return self.fields.get("group") == "validation"
        return self.kind not in DEFERRABLE_KINDS


class ReportReader:
    """A reader of the report files in a trial's folder `out`. A writer is a rank as text."""

    def __init__(self, out: Path) -> None:
        self._out = out
        # The start of a writer's too long line, and the offset that the search for its end reached.
        self._long_lines: dict[str, tuple[int, int]] = {}
        self.skipped_bytes = 0
        """The bytes that all searches for the ends of too long lines have read so far."""

    def writers(self) -> list[str]:
        """Return the ranks with a report file in ascending order, at most WRITERS_MAX.

        Return an empty list if the folder cannot be opened.
        """
        try:
            directory = os.open(self._out, OPEN_FLAGS | os.O_DIRECTORY)
        except OSError:
            return []
        try:
            with os.scandir(directory) as entries:
                names = [entry.name for entry, _ in zip(entries, range(ENTRIES_MAX), strict=False)]
        finally:
            os.close(directory)
        matches = (REPORT_NAME.fullmatch(name) for name in names)
        return sorted((match[1] for match in matches if match), key=int)[:WRITERS_MAX]

    def read_lines(
        self,
        writer: str,
        offset: int,
        bytes_max: int = LINE_BYTES_MAX,
        *,
        look_bytes_max: int = LOOK_BYTES_MAX,
    ) -> list[ReportLine]:
        """Return complete lines from `offset` on, about `bytes_max` bytes but at least one line.

        Invalid and too long lines become warnings. Return an empty list if the file is unreadable,
        if no complete line follows, or if the search for a too long line's end continues.

        Args:
            look_bytes_max: the bytes to search for the end of a too long line. A later call with
                the same offset continues the search.
        """
        with self._open_report(writer) as descriptor:
            if descriptor is None:
                return []
            size = os.fstat(descriptor).st_size
            if offset >= min(size, FILE_BYTES_MAX):
                return []
            lines = self._read_lines_at(descriptor, writer, offset, bytes_max, look_bytes_max)
            return _cut_at_limit(lines)

    def has_more(self, writer: str, offset: int) -> bool:
        """Whether the writer's file has bytes after `offset` within FILE_BYTES_MAX.

        False if the file is unreadable.
        """
        with self._open_report(writer) as descriptor:
            if descriptor is None:
                return False
            return offset < min(os.fstat(descriptor).st_size, FILE_BYTES_MAX)

    def search_lines(
        self, writer: str, offset: int, words: Sequence[bytes]
    ) -> tuple[list[ReportLine], int, int]:
        """Search up to SCAN_BYTES of complete lines after `offset` for lines with any of the words.

        Return the lines that were found, the number of lines read, and the offset after the lines
        read. Return an empty list, 0 and `offset` if no complete line follows or the file is
        unreadable. A too long line counts as read and not found.
        """
        with self._open_report(writer) as descriptor:
            bytes_max = min(SCAN_BYTES, FILE_BYTES_MAX - offset)
            if descriptor is None or bytes_max <= 0:
                return [], 0, offset
            content = os.pread(descriptor, bytes_max, offset)
        content = content[: content.rfind(b"\n") + 1]
        if not content:
            # The line is too long or incomplete: skip the line or wait for its end.
            skipped = self.read_lines(writer, offset)
            return [], len(skipped), skipped[-1].offset if skipped else offset
        raw_lines = content[:-1].split(b"\n")
        found, end = [], offset
        for raw in raw_lines:
            end += len(raw) + 1
            if any(word in raw for word in words):
                found.append(parse_line(raw, end))
        return found, len(raw_lines), end

    def last_record(self, writer: str, kind: str) -> dict[str, Any] | None:
        """Return the last record of a kind in the last 512 KiB of the writer's file.

        Return None if no such record is found or the file is unreadable.
        """
        with self._open_report(writer) as descriptor:
            if descriptor is None:
                return None
            offset = max(0, os.fstat(descriptor).st_size - 2 * LINE_BYTES_MAX)
            lines = self._read_lines_at(descriptor, writer, offset, 2 * LINE_BYTES_MAX)
        return next((line.fields for line in reversed(lines) if line.kind == kind), None)

    @contextlib.contextmanager
    def _open_report(self, writer: str) -> Iterator[int | None]:
        descriptors: list[int] = []
        try:
            descriptors.append(os.open(self._out, OPEN_FLAGS | os.O_DIRECTORY))
            name = f"report-{writer}.jsonl"
            descriptors.append(os.open(name, OPEN_FLAGS, dir_fd=descriptors[0]))
            status = os.fstat(descriptors[1])
            plain = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
            yield descriptors[1] if plain else None
        except OSError:
            if len(descriptors) == 2:
                raise
            yield None
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _read_lines_at(
        self,
        descriptor: int,
        writer: str,
        offset: int,
        bytes_max: int,
        look_bytes_max: int = LOOK_BYTES_MAX,
    ) -> list[ReportLine]:
        if self._long_lines.get(writer, (-1, 0))[0] == offset:
            return self._skip_long_line(descriptor, writer, offset, look_bytes_max)
        content = os.pread(descriptor, max(bytes_max, LINE_BYTES_MAX + 1), offset)
        end = content.rfind(b"\n") + 1
        if end == 0:
            if len(content) <= LINE_BYTES_MAX:
                return []
            return self._skip_long_line(descriptor, writer, offset, look_bytes_max)
        lines: list[ReportLine] = []
        start = 0
        while start < end and (not lines or start < bytes_max):
            stop = content.index(b"\n", start) + 1
            lines.append(parse_line(content[start : stop - 1], offset + stop))
            start = stop
        return lines

    def _skip_long_line(
        self, descriptor: int, writer: str, start: int, look_bytes_max: int
    ) -> list[ReportLine]:
        """Search for the end of the too long line at `start`, and return a replacing warning.

        After LOOK_BYTES_MAX bytes without an end, return a warning in place of the bytes. Return an
        empty list if neither was reached; the next call with this start continues the search.
        Read at most about `look_bytes_max` bytes. Holes of the file are skipped.
        """
        known_start, scanned = self._long_lines.get(writer, (start, start))
        if known_start != start:
            scanned = start
        read, newline = 0, -1
        while read < look_bytes_max and newline < 0:
            scanned = _next_data(descriptor, scanned)
            content = os.pread(descriptor, SCAN_BYTES, scanned)
            if not content:
                break
            read += len(content)
            newline = content.find(b"\n")
            scanned += len(content) if newline < 0 else newline + 1
        self.skipped_bytes += read
        size = scanned - start
        if newline < 0 and size < LOOK_BYTES_MAX:
            self._long_lines[writer] = (start, scanned)
            return []
        self._long_lines.pop(writer, None)
        if newline < 0:
            problem = f"{size} bytes without a line ending were skipped"
        else:
            problem = f"a line of {size - 1} bytes was skipped"
        return [warning_line(scanned, f"{problem}; the limit is {LINE_BYTES_MAX}", read)]


def _next_data(descriptor: int, offset: int) -> int:
    """Return the offset of the next byte from `offset` on that lies in no hole of the file.

    Return the file's size if only a hole follows, and `offset` if holes are not supported.
    """
    try:
        return os.lseek(descriptor, offset, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return max(offset, os.fstat(descriptor).st_size)
        # The file system does not support holes.
        return offset


def _cut_at_limit(lines: list[ReportLine]) -> list[ReportLine]:
    """Return the lines before FILE_BYTES_MAX, with a final warning if a line reaches the limit."""
    if not lines or lines[-1].offset < FILE_BYTES_MAX:
        return lines
    within = [line for line in lines if line.offset < FILE_BYTES_MAX]
    limit = f"{FILE_BYTES_MAX >> 30} GiB"
    return [*within, warning_line(FILE_BYTES_MAX, f"at most {limit} of reports are read")]


def parse_line(raw: bytes, offset: int) -> ReportLine:
    """Parse a line, given without newline, into a record. `offset` is the offset after the line.

    Return a warning instead if the line is too long, nested too deep, no JSON object, or contains
    half a surrogate pair.
    """
    if len(raw) > LINE_BYTES_MAX:
        problem = f"a line of {len(raw)} bytes was skipped; the limit is {LINE_BYTES_MAX}"
        return warning_line(offset, problem)
    try:
        text = raw.decode()
        fields = json.loads(text, parse_constant=_refuse_constant)
        if "\\u" in text:
            # The encoding fails for half a surrogate pair, which the cluster could not store.
            json.dumps(fields, ensure_ascii=False).encode()
    except RecursionError:
        return _deep_line_warning(raw, offset)
    except ValueError as error:
        problem = _describe_parse_error(error)
        return warning_line(
            offset, f"a line was skipped, it is not JSON: {problem}: {_preview(raw)}"
        )
    if not isinstance(fields, dict):
        return warning_line(offset, f"a line was skipped, it is not a JSON object: {_preview(raw)}")
    if is_too_deep(fields):
        return _deep_line_warning(raw, offset)
    return ReportLine(offset, raw, fields)


def _deep_line_warning(raw: bytes, offset: int) -> ReportLine:
    problem = f"it is nested more than {JSON_DEPTH_MAX} levels deep"
    return warning_line(offset, f"a line was skipped, {problem}: {_preview(raw)}")


def _describe_parse_error(error: ValueError) -> str:
    if isinstance(error, UnicodeEncodeError):
        return "half a surrogate pair is not valid text"
    return str(error).split(" (char")[0]


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not a JSON value")


def warning_line(offset: int, message: str, skipped_bytes: int = 0) -> ReportLine:
    """Return an `agent_warning` record with the current time, to be sent in place of a line.

    `offset` is the offset after the replaced line.
    """
    fields = {
        "kind": "agent_warning",
        "time_ms": time.time_ns() // 1_000_000,
        "message": message,
    }
    return ReportLine(offset, json.dumps(fields).encode(), fields, message, skipped_bytes)


def _preview(raw: bytes) -> str:
    return ascii(raw[:60].decode(errors="replace"))
