"""The report files of a trial, which may hold or be anything.

The trial writes out/, so nothing in it is trusted: files are opened by directory descriptor without
following links, only regular files with a single name count, and the bytes of a look and of a file
are capped. A line that cannot be passed on (too long, nested too deep, no JSON object) is replaced
by an `agent_warning` record at the same offset: the acknowledged offset moves past it, the user
sees it, and the agent need not remember it.
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
# How far a look searches for the end of a too long line before it skips what it has seen.
LOOK_BYTES_MAX = 16 << 20
# What follows in a file is not read: a trial can make one of any size at no cost.
FILE_BYTES_MAX = 16 << 30
WRITERS_MAX = 64
ENTRIES_MAX = 4096
# Only plain ranks: a trial must not be able to speak as the writer `agent`.
REPORT_NAME = re.compile(r"report-(0|[1-9][0-9]{0,4})\.jsonl")
OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
DEFERRABLE_KINDS = frozenset({"environment", "progress", "agent_warning", "rank_metrics"})
PRIORITY_KINDS = frozenset(
    {"exit", "exited", "checkpoint", "checkpoint_damage", "checkpoint_intent", "early_exit"}
)


@dataclass(frozen=True, slots=True)
class ReportLine:
    """One report line: the byte offset after its newline, its JSON text and the parsed object.

    `warning` says why it stands in place of one that is not passed on, "" if it does not;
    `skipped_bytes` is what the search for its end has read.
    """

    offset: int
    raw: bytes
    fields: dict[str, Any]
    warning: str = ""
    skipped_bytes: int = 0

    @property
    def kind(self) -> str:
        """The record's kind, "" where it has none."""
        return str(self.fields.get("kind", ""))

    @property
    def is_urgent(self) -> bool:
        """Whether to send it to the cluster at once; training metrics and the like may wait."""
        if self.kind == "metrics":
            return self.fields.get("group") == "validation"
        return self.kind not in DEFERRABLE_KINDS


class ReportReader:
    """A reader of the report files in a trial's out/ directory."""

    def __init__(self, out: Path) -> None:
        self._out = out
        # By writer, how far the search for the end of a too long line came: (its start, scanned).
        self._long_lines: dict[str, tuple[int, int]] = {}

    def writers(self) -> list[str]:
        """The ranks that write, at most 64, lowest first."""
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
        self, writer: str, offset: int, bytes_max: int = LINE_BYTES_MAX
    ) -> list[ReportLine]:
        """Complete lines from `offset` on, about `bytes_max` bytes of them and at least one."""
        with self._open_report(writer) as descriptor:
            if descriptor is None:
                return []
            size = os.fstat(descriptor).st_size
            if offset >= min(size, FILE_BYTES_MAX):
                return []
            return _cut_at_limit(self._read_lines_at(descriptor, writer, offset, bytes_max))

    def search_lines(
        self, writer: str, offset: int, words: Sequence[bytes]
    ) -> tuple[list[ReportLine], int, int]:
        """The lines after `offset` that hold one of the words, of those that a look reads; how many
        it has read, and the offset after them.
        """
        with self._open_report(writer) as descriptor:
            bytes_max = min(SCAN_BYTES, FILE_BYTES_MAX - offset)
            if descriptor is None or bytes_max <= 0:
                return [], 0, offset
            content = os.pread(descriptor, bytes_max, offset)
        content = content[: content.rfind(b"\n") + 1]
        if not content:
            # A line without an end here, which is skipped or waited for.
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
        """The last record of that kind in the last line's length of the file."""
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
        self, descriptor: int, writer: str, offset: int, bytes_max: int
    ) -> list[ReportLine]:
        content = os.pread(descriptor, max(bytes_max, LINE_BYTES_MAX + 1), offset)
        end = content.rfind(b"\n") + 1
        if end == 0:
            if len(content) <= LINE_BYTES_MAX:
                return []
            return self._skip_long_line(descriptor, writer, offset)
        lines: list[ReportLine] = []
        start = 0
        while start < end and (not lines or start < bytes_max):
            stop = content.index(b"\n", start) + 1
            lines.append(parse_line(content[start : stop - 1], offset + stop))
            start = stop
        return lines

    def _skip_long_line(self, descriptor: int, writer: str, start: int) -> list[ReportLine]:
        """A warning in place of the too long line at `start`, or of what was read of one that has
        no end within 16 MiB; nothing while it is shorter and has no end yet.

        The search for its end goes on where the last one stopped. Holes of the file are not read.
        """
        known_start, scanned = self._long_lines.get(writer, (start, start))
        if known_start != start:
            scanned = start
        read, newline = 0, -1
        while read < LOOK_BYTES_MAX and newline < 0:
            scanned = _next_data(descriptor, scanned)
            content = os.pread(descriptor, SCAN_BYTES, scanned)
            if not content:
                break
            read += len(content)
            newline = content.find(b"\n")
            scanned += len(content) if newline < 0 else newline + 1
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
    """The offset of the next byte that is in no hole of the file, or the file's size."""
    try:
        return os.lseek(descriptor, offset, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return max(offset, os.fstat(descriptor).st_size)
        # A file system that knows nothing of holes.
        return offset


def _cut_at_limit(lines: list[ReportLine]) -> list[ReportLine]:
    """The lines up to the limit of the file, and a warning if the file exceeds it."""
    if not lines or lines[-1].offset < FILE_BYTES_MAX:
        return lines
    within = [line for line in lines if line.offset < FILE_BYTES_MAX]
    limit = f"{FILE_BYTES_MAX >> 30} GiB"
    return [*within, warning_line(FILE_BYTES_MAX, f"at most {limit} of reports are read")]


def parse_line(raw: bytes, offset: int) -> ReportLine:
    """The line as a record, or a warning in its place."""
    if len(raw) > LINE_BYTES_MAX:
        problem = f"a line of {len(raw)} bytes was skipped; the limit is {LINE_BYTES_MAX}"
        return warning_line(offset, problem)
    try:
        text = raw.decode()
        fields = json.loads(text, parse_constant=_refuse_constant)
        if "\\u" in text:
            # Half a surrogate pair, which is no text that the cluster could store.
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
    """The warning that is sent in place of a line, with the same offset."""
    fields = {
        "kind": "agent_warning",
        "time_ms": time.time_ns() // 1_000_000,
        "message": message,
    }
    return ReportLine(offset, json.dumps(fields).encode(), fields, message, skipped_bytes)


def _preview(raw: bytes) -> str:
    return ascii(raw[:60].decode(errors="replace"))
