"""Search of a trial's log for lines, forwards or backwards. Each line has a time, rank and level.

The last line of a growing log is found only when its end is written. The exception is a progress
bar, which rewrites one line for hours with carriage returns. The overwritten part of such a line is
found as an unfinished line.
"""

import sys
from dataclasses import dataclass

from control_plane.agents.log_scan import (
    SCANNED_BYTES_MAX,
    SCANNED_CHUNKS_MAX,
    LineFilter,
    LogLine,
    LogPosition,
    Scan,
    find_line_start,
    scan_allocation,
)
from control_plane.agents.logs import TrialLogs

# The log is read backwards in blocks. Most pages without a filter need one block.
_FIRST_BLOCK_BYTES = 64 * 1024
_BLOCK_BYTES_MAX = SCANNED_BYTES_MAX
_BLOCK_BYTES_MIN = 1024


@dataclass(frozen=True, slots=True)
class LogLinePage:
    """The lines found by a search, and the positions for further searches."""

    lines: list[LogLine]
    """The lines, in order. May be empty before the end of the log."""
    start: int
    """The offset from which the page was searched. Earlier lines begin before this offset."""
    next: LogPosition
    """The position from which the next search continues."""
    is_end: bool
    """Whether the search reached the current end of the log."""
    size: int
    """The current size of the trial's log in bytes."""


def find_lines(
    logs: TrialLogs,
    trial_id: int,
    epochs: int,
    after: LogPosition,
    *,
    ended: bool,
    line_filter: LineFilter,
    limit: int,
) -> LogLinePage:
    """Find at most `limit` lines of a trial's log from position `after` on.

    One call scans a limited number of bytes and chunks, so a page with fewer lines, or without
    lines, may not be the last. A last line without a newline is found if the trial has ended or has
    a later allocation. Before that, only text before its last carriage return is found.

    Args:
        logs: reads the log.
        trial_id: the trial. Without a log, the page is empty and is the end.
        epochs: the number of the trial's allocations.
        after: the position of the previous page, or LogPosition() for the beginning.
        ended: whether the log will not grow any more.
        line_filter: the conditions that the lines meet.
        limit: the maximum number of lines.

    Raises:
        TableError, OSError: the state table or the object store failed.
        ValueError: the filter's level is unknown.
    """
    scan = Scan(line_filter, limit, *after)
    sizes = logs.read_allocation_sizes(trial_id, epochs)
    total = sum(sizes)
    if scan.start > total:
        scan.start, scan.is_inside = total, True
    base = 0
    for epoch, size in enumerate(sizes, 1):
        log_end = base + size
        if scan.start == base:
            # A line never continues in the next allocation.
            scan.is_inside = False
        if scan.start < log_end:
            scan_allocation(logs, trial_id, epoch, base, log_end, scan)
            if not scan.is_over and (ended or epoch < epochs):
                scan.cut_lines(ends=True)
            if scan.start < log_end and (scan.is_over or epoch < epochs):
                return LogLinePage(scan.lines, _start(scan, after), scan.position, False, total)
        base = log_end
    if not ended and not scan.is_over:
        scan.cut_overwritten_text()
    return LogLinePage(scan.lines, _start(scan, after), scan.position, True, total)


def find_earlier_lines(
    logs: TrialLogs,
    trial_id: int,
    epochs: int,
    before: int,
    *,
    ended: bool,
    line_filter: LineFilter,
    limit: int,
) -> LogLinePage:
    """Find the last `limit` lines of a trial's log that end at or before offset `before`.

    One call scans a limited number of bytes, so a page with fewer lines, or without lines, may not
    be the first; only a page with `start` 0 is the first. The last line of a growing log is treated
    as in `find_lines`.

    Args:
        logs: reads the log.
        trial_id: the trial. Without a log, the page is empty.
        epochs: the number of the trial's allocations.
        before: the `start` of the later page, or any number beyond the size for the end of the log.
        ended: whether the log will not grow any more.
        line_filter: the conditions that the lines meet.
        limit: the maximum number of lines.

    Raises:
        TableError, OSError: the state table or the object store failed.
        ValueError: the filter's level is unknown.
    """
    sizes = logs.read_allocation_sizes(trial_id, epochs)
    total = sum(sizes)
    end = min(before, total)
    following = LogPosition(end)
    lines: list[LogLine] = []
    bytes_left, chunks_left = SCANNED_BYTES_MAX, SCANNED_CHUNKS_MAX
    block_bytes = _FIRST_BLOCK_BYTES
    while end > 0 and len(lines) < limit and bytes_left > 0 and chunks_left > 0:
        epoch, base = _allocation_before(sizes, end)
        start = max(base, end - block_bytes)
        if start > base:
            start = base + find_line_start(logs, trial_id, epoch, start - base, end - base)
        scan = Scan(line_filter, sys.maxsize, start, False, bytes_left=sys.maxsize)
        scan_allocation(logs, trial_id, epoch, base, end, scan)
        if scan.chunks_left <= 0 and block_bytes > _BLOCK_BYTES_MIN:
            # The scan did not reach the end of a block of very small chunks.
            block_bytes = max(_BLOCK_BYTES_MIN, block_bytes // 8)
            continue
        if end == total and epoch == epochs and not ended:
            scan.cut_overwritten_text()
            following = scan.position
        else:
            scan.cut_lines(ends=True)
        lines[:0] = scan.lines
        bytes_left -= sys.maxsize - scan.bytes_left
        chunks_left -= SCANNED_CHUNKS_MAX - scan.chunks_left
        end = start
        block_bytes = min(2 * block_bytes, _BLOCK_BYTES_MAX)
    if len(lines) > limit:
        lines = lines[-limit:]
        end = lines[0].offset
    return LogLinePage(lines, end, following, before >= total, total)


def _start(scan: Scan, after: LogPosition) -> int:
    """Return the offset of the first line found, or the position's offset without lines."""
    return scan.lines[0].offset if scan.lines else after.offset


def _allocation_before(sizes: list[int], end: int) -> tuple[int, int]:
    """Return the number of the allocation with the byte before offset `end`, and the offset of the
    allocation's first byte.

    Args:
        sizes: the size of each allocation's log, in order.
        end: an offset from 1 to the sum of `sizes`.
    """
    base = 0
    for epoch, size in enumerate(sizes, 1):
        if base < end <= base + size:
            return epoch, base
        base += size
    raise ValueError(f"offset {end} is not within the log of {base} bytes")
