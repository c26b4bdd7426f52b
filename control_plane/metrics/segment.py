"""Segments: reports of metrics, encoded as the body of a row.

The format of a segment:

    version (1 byte), number of reports, bytes of the summary (4 bytes each, little endian)
    summary   compressed; empty in a small segment
    reports   compressed; a split segment (version 2) has the SHA-256 of the compressed reports here
              and stores the reports elsewhere

Summary and reports begin with a JSON header that names the columns. The arrays of the columns
follow. An array of 8-byte numbers is stored as eight planes: first the first byte of each number,
then the second byte of each number, and so on. Bytes that hardly change are then adjacent, so that
a value that was a 32-bit float takes little more than four bytes.
"""

from __future__ import annotations

import json
import struct
import sys
import zlib
from array import array
from collections.abc import Iterable
from hashlib import sha256
from itertools import accumulate, chain
from operator import sub
from typing import Any, cast

from control_plane.metrics.columns import (
    Column,
    Columns,
    MetricReport,
    Values,
    parse_report,
    to_columns,
)
from control_plane.metrics.summary import Moments, NameSummary, Summary, summarise_columns

VERSION = 1
# The version of a split segment, which stores the reports elsewhere.
SPLIT_VERSION = 2
_VERSIONS = (VERSION, SPLIT_VERSION)
SUMMARY_REPORTS_MIN = 512
# The maximum number of metrics in a summary. A larger summary would be as long as the reports.
SUMMARY_NAMES_MAX = 128
COMPRESSION = 6

_PREFIX = struct.Struct("<BII")
_LENGTH = struct.Struct("<I")
_JSON = "j"


def encode_segment(columns: Columns) -> bytes:
    """Encode reports as a segment.

    The segment has a summary if it has SUMMARY_REPORTS_MIN reports and at most SUMMARY_NAMES_MAX
    metrics.
    """
    summary = b""
    if len(columns) >= SUMMARY_REPORTS_MIN and len(columns.names) <= SUMMARY_NAMES_MAX:
        summary = _encode_summary(summarise_columns(columns))
    prefix = _PREFIX.pack(VERSION, len(columns), len(summary))
    return prefix + summary + _encode_columns(columns)


def decode_segment(body: bytes, offset: int) -> Columns:
    """Decode the reports of a segment.

    Raises ValueError for a split segment, a segment of a newer release and a damaged segment.

    Segments of the first releases are JSON lists of lines and have no offsets of lines except the
    first. The offsets of later lines are counted up by 1. A line has more than one byte, so no two
    lines get the same offset.

    Args:
        offset: the offset in the key of the segment's row.
    """
    if body[:1] == b"[":
        lines = enumerate(json.loads(body), offset)
        return to_columns(filter(None, (_parse_line(place, line) for place, line in lines)))
    version, reports, skipped = _decode_prefix(body)
    if version == SPLIT_VERSION:
        raise ValueError("the reports of this segment are stored elsewhere")
    return _decode_columns(body[_PREFIX.size + skipped :], reports)


def split_segment(body: bytes) -> tuple[bytes, bytes]:
    """Split a segment into a segment without reports, and the encoded reports.

    `decode_split_segment` decodes both.
    """
    _, reports, size = _decode_prefix(body)
    end = _PREFIX.size + size
    summary, content = body[_PREFIX.size : end], body[end:]
    return _PREFIX.pack(SPLIT_VERSION, reports, size) + summary + sha256(content).digest(), content


def is_readable(body: bytes) -> bool:
    """Return whether this release knows the format of a segment. Damage is not detected."""
    return body[:1] == b"[" or int.from_bytes(body[:1]) in _VERSIONS


def content_digest(body: bytes) -> str | None:
    """Return the hexadecimal SHA-256 of a split segment's reports. Return None for another
    segment.
    """
    if body[:1] == b"[":
        return None
    version, _, size = _decode_prefix(body)
    return body[_PREFIX.size + size :].hex() if version == SPLIT_VERSION else None


def decode_split_segment(body: bytes, content: bytes) -> Columns:
    """Decode the reports of a split segment.

    Args:
        content: the encoded reports that `split_segment` returned.
    """
    return _decode_columns(content, report_count(body))


def report_count(body: bytes) -> int:
    """Return the number of reports in a segment. Return 0 for a segment of the first releases."""
    return 0 if body[:1] == b"[" else _decode_prefix(body)[1]


def decode_summary(body: bytes) -> Summary | None:
    """Decode the summary of a segment. Return None for a segment without a summary."""
    if body[:1] == b"[":
        return None
    _, _, size = _decode_prefix(body)
    return _decode_summary(body[_PREFIX.size : _PREFIX.size + size]) if size else None


def _decode_prefix(body: bytes) -> tuple[int, int, int]:
    """Return the version, the number of reports and the bytes of the summary.

    Raises ValueError for an unknown version and for a body that is too short.
    """
    if len(body) < _PREFIX.size:
        raise ValueError(f"a segment of {len(body)} bytes is damaged")
    version, reports, size = _PREFIX.unpack_from(body)
    if version not in _VERSIONS:
        raise ValueError(
            f"a segment of version {version}; this server reads {VERSION}, {SPLIT_VERSION}"
        )
    return version, reports, size


def _parse_line(offset: int, line: object) -> MetricReport | None:
    """Parse a stored line of metrics. Return None for a malformed line."""
    return parse_report(offset, line) if isinstance(line, dict) else None


def _encode_columns(columns: Columns) -> bytes:
    """Encode reports as a compressed block: arrays of offsets, steps and times, then all
    columns.
    """
    header = []
    blocks = [
        _encode_ascending(values) for values in (columns.offsets, columns.steps, columns.times)
    ]
    for name, column in columns.names.items():
        block, kind = _encode_values(column.values)
        at = b"" if column.report_positions is None else _to_planes(column.report_positions)
        header.append([name, kind, len(column.values), len(at), len(block)])
        blocks += (at, block)
    return _compress_block(header, blocks)


def _decode_columns(body: bytes, reports: int) -> Columns:
    """Decode the block of `reports` reports that `_encode_columns` returned."""
    header, content = _decompress_block(body)
    offsets, steps, times = (
        _decode_ascending(content[start : start + 8 * reports])
        for start in range(0, 24 * reports, 8 * reports)
    )
    names, start = {}, 24 * reports
    for name, kind, count, at_size, size in header:
        at = _from_planes("I", content[start : start + at_size]) if count != reports else None
        start += at_size
        names[name] = Column(_decode_values(kind, content[start : start + size]), at)
        start += size
    return Columns(offsets, steps, times, names)


def _encode_values(values: Values) -> tuple[bytes, str]:
    """Encode the values of a column. Return the bytes and the kind: an array's typecode or
    _JSON.
    """
    if isinstance(values, array):
        return _to_planes(values), values.typecode
    return json.dumps(values, separators=(",", ":")).encode(), _JSON


def _decode_values(kind: str, content: bytes) -> Values:
    """Decode the values of a column from the kind and bytes that `_encode_values` returned."""
    if kind == _JSON:
        values: list[Any] = json.loads(content)
        return values
    return _from_planes(kind, content)


def _encode_summary(summary: Summary) -> bytes:
    """Encode a summary as a compressed block."""
    names = [
        [n, s.count, s.mean, s.minimum, s.maximum, s.last_steps, s.last, len(s.steps)]
        for n, s in summary.names.items()
    ]
    bounds = (summary.steps_min, summary.steps_max, summary.first_offset, summary.last_offset)
    facts = [summary.reports, *bounds, names]
    arrays = (_to_planes(s.steps) + _to_planes(s.values) for s in summary.names.values())
    # The moments come last, because readers of earlier releases ignore the rest of the block.
    moments = (_encode_ascending(summary.moments.steps), _encode_ascending(summary.moments.times))
    return _compress_block(facts, chain(arrays, moments))


def _decode_summary(body: bytes) -> Summary:
    """Decode the block that `_encode_summary` returned."""
    (*facts, listed), content = _decompress_block(body)
    reports, steps_min, steps_max, first_offset, last_offset = facts
    names, start = {}, 0
    for name, count, mean, minimum, maximum, last_steps, last, points in listed:
        middle, end = start + 8 * points, start + 16 * points
        steps = _from_planes("q", content[start:middle])
        values = _from_planes("d", content[middle:end])
        start = end
        names[name] = NameSummary(
            count, mean, minimum, maximum, last_steps, last, steps, cast("array[float]", values)
        )
    middle = start + (len(content) - start) // 2
    moments = Moments(_decode_ascending(content[start:middle]), _decode_ascending(content[middle:]))
    return Summary(reports, steps_min, steps_max, first_offset, last_offset, names, moments)


def _compress_block(header: object, blocks: Iterable[bytes]) -> bytes:
    """Compress a block: the length of the JSON header, the header, and `blocks`."""
    text = json.dumps(header, separators=(",", ":")).encode()
    return zlib.compress(b"".join((_LENGTH.pack(len(text)), text, *blocks)), COMPRESSION)


def _decompress_block(body: bytes) -> tuple[Any, bytes]:
    """Decompress a block into the parsed header and the remaining bytes.

    Raises ValueError for damaged bytes.
    """
    try:
        content = zlib.decompress(body)
        end = _LENGTH.size + _LENGTH.unpack_from(content)[0]
    except (zlib.error, struct.error) as error:
        raise ValueError(f"a damaged segment: {error}") from error
    return json.loads(content[_LENGTH.size : end]), content[end:]


def _encode_ascending(values: array[int]) -> bytes:
    """Encode ascending numbers as differences, which are small and compress well."""
    return _to_planes(array("q", chain(values[:1], map(sub, values[1:], values))))


def _decode_ascending(content: bytes) -> array[int]:
    """Decode the numbers that `_encode_ascending` encoded."""
    return array("q", accumulate(_from_planes("q", content)))


def _to_planes(values: array[Any]) -> bytes:
    """Encode an array as planes: first the first byte of each number, and so on. Little endian."""
    if sys.byteorder == "big":
        values = values[:]
        values.byteswap()
    content, width = values.tobytes(), values.itemsize
    return b"".join(content[n::width] for n in range(width))


def _from_planes(kind: str, content: bytes) -> array[Any]:
    """Decode an array of the typecode `kind` from planes."""
    values: array[Any] = array(kind)
    width, count = values.itemsize, len(content) // values.itemsize
    whole = bytearray(len(content))
    for n in range(width):
        whole[n::width] = content[n * count : (n + 1) * count]
    values.frombytes(whole)
    if sys.byteorder == "big":
        values.byteswap()
    return values
