"""Segments: reports of metrics as the bytes of one row.

    version (1 byte), reports, bytes of the summary (4 bytes each, little endian)
    summary   compressed; none in a small segment
    reports   compressed; in version 2 the SHA-256 of what they are compressed to, which lies
              elsewhere

Both hold a JSON header that names the columns, and behind it their arrays. An array of numbers of
eight bytes is stored as eight planes, the first bytes of all numbers first: the bytes that hardly
change lie together, and a metric that was a float of 32 bits takes little more than four.
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

from control_plane.metrics.columns import Column, Columns, Reported, Values, columns_of, reported
from control_plane.metrics.summary import NameSummary, Summary, summarised

VERSION = 1
# Of a segment whose reports lie elsewhere.
PARTED = 2
SUMMARISED_FROM = 512
# A summary of more names would be as long as what it sums up.
SUMMARISED_NAMES_MAX = 128
COMPRESSION = 6

_PREFIX = struct.Struct("<BII")
_LENGTH = struct.Struct("<I")
_JSON = "j"


def encoded(columns: Columns) -> bytes:
    """The row's body. Small segments are not worth a summary."""
    summary = b""
    if len(columns) >= SUMMARISED_FROM and len(columns.names) <= SUMMARISED_NAMES_MAX:
        summary = _encoded_summary(summarised(columns))
    prefix = _PREFIX.pack(VERSION, len(columns), len(summary))
    return prefix + summary + _encoded_columns(columns)


def decoded(body: bytes, offset: int) -> Columns:
    """The reports of a row; `offset` is the one in its key.

    Rows of the first releases are JSON lists of lines. They keep no offsets but the first line's,
    so that theirs are counted up from it: a line has more than one byte, so none is used twice.
    """
    if body[:1] == b"[":
        lines = enumerate(json.loads(body), offset)
        return columns_of(filter(None, (_line(place, line) for place, line in lines)))
    version, reports, skipped = _prefix(body)
    if version == PARTED:
        raise ValueError("the reports of this segment lie elsewhere")
    return _decoded_columns(body[_PREFIX.size + skipped :], reports)


def parted(body: bytes) -> tuple[bytes, bytes]:
    """A segment without its reports, and the reports as `rejoined` takes them."""
    _, reports, size = _prefix(body)
    behind = _PREFIX.size + size
    summary, content = body[_PREFIX.size : behind], body[behind:]
    return _PREFIX.pack(PARTED, reports, size) + summary + sha256(content).digest(), content


def digest_of(body: bytes) -> str | None:
    """The SHA-256, hexadecimal, of reports that lie elsewhere; None where they lie in the row."""
    if body[:1] == b"[":
        return None
    version, _, size = _prefix(body)
    return body[_PREFIX.size + size :].hex() if version == PARTED else None


def rejoined(body: bytes, content: bytes) -> Columns:
    """The reports of a segment whose reports lie elsewhere, where they were found as `content`."""
    return _decoded_columns(content, reports_in(body))


def reports_in(body: bytes) -> int:
    """How many reports a row has, 0 where it does not say."""
    return 0 if body[:1] == b"[" else _prefix(body)[1]


def summary_of(body: bytes) -> Summary | None:
    """The summary stored in a row, None where there is none."""
    if body[:1] == b"[":
        return None
    _, _, size = _prefix(body)
    return _decoded_summary(body[_PREFIX.size : _PREFIX.size + size]) if size else None


def _prefix(body: bytes) -> tuple[int, int, int]:
    version, reports, size = _PREFIX.unpack_from(body)
    if version not in (VERSION, PARTED):
        raise ValueError(f"a segment of version {version}; this server reads {VERSION}, {PARTED}")
    return version, reports, size


def _line(offset: int, line: object) -> Reported | None:
    return reported(offset, line) if isinstance(line, dict) else None


def _encoded_columns(columns: Columns) -> bytes:
    header = []
    blocks = [_steps(values) for values in (columns.offsets, columns.steps, columns.times)]
    for name, column in columns.names.items():
        block, kind = _encoded_values(column.values)
        at = b"" if column.at is None else _planes(column.at)
        header.append([name, kind, len(column.values), len(at), len(block)])
        blocks += (at, block)
    return _block(header, blocks)


def _decoded_columns(body: bytes, reports: int) -> Columns:
    header, content = _opened(body)
    offsets, steps, times = (
        _from_steps(content[start : start + 8 * reports])
        for start in range(0, 24 * reports, 8 * reports)
    )
    names, start = {}, 24 * reports
    for name, kind, count, at_size, size in header:
        at = _from_planes("I", content[start : start + at_size]) if count != reports else None
        start += at_size
        names[name] = Column(_decoded_values(kind, content[start : start + size]), at)
        start += size
    return Columns(offsets, steps, times, names)


def _encoded_values(values: Values) -> tuple[bytes, str]:
    if isinstance(values, array):
        return _planes(values), values.typecode
    return json.dumps(values, separators=(",", ":")).encode(), _JSON


def _decoded_values(kind: str, content: bytes) -> Values:
    if kind == _JSON:
        values: list[Any] = json.loads(content)
        return values
    return _from_planes(kind, content)


def _encoded_summary(summary: Summary) -> bytes:
    names = [
        [n, s.count, s.mean, s.minimum, s.maximum, s.last_steps, s.last, len(s.steps)]
        for n, s in summary.names.items()
    ]
    bounds = (summary.steps_min, summary.steps_max, summary.first_offset, summary.last_offset)
    facts = [summary.reports, *bounds, names]
    arrays = (_planes(s.steps) + _planes(s.values) for s in summary.names.values())
    return _block(facts, arrays)


def _decoded_summary(body: bytes) -> Summary:
    (*facts, listed), content = _opened(body)
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
    return Summary(reports, steps_min, steps_max, first_offset, last_offset, names)


def _block(header: object, blocks: Iterable[bytes]) -> bytes:
    text = json.dumps(header, separators=(",", ":")).encode()
    return zlib.compress(b"".join((_LENGTH.pack(len(text)), text, *blocks)), COMPRESSION)


def _opened(body: bytes) -> tuple[Any, bytes]:
    content = zlib.decompress(body)
    end = _LENGTH.size + _LENGTH.unpack_from(content)[0]
    return json.loads(content[_LENGTH.size : end]), content[end:]


def _steps(values: array[int]) -> bytes:
    """Ascending numbers as their differences, which are small."""
    return _planes(array("q", chain(values[:1], map(sub, values[1:], values))))


def _from_steps(content: bytes) -> array[int]:
    return array("q", accumulate(_from_planes("q", content)))


def _planes(values: array[Any]) -> bytes:
    if sys.byteorder == "big":
        values = values[:]
        values.byteswap()
    content, width = values.tobytes(), values.itemsize
    return b"".join(content[n::width] for n in range(width))


def _from_planes(kind: str, content: bytes) -> array[Any]:
    values: array[Any] = array(kind)
    width, count = values.itemsize, len(content) // values.itemsize
    whole = bytearray(len(content))
    for n in range(width):
        whole[n::width] = content[n * count : (n + 1) * count]
    values.frombytes(whole)
    if sys.byteorder == "big":
        values.byteswap()
    return values
