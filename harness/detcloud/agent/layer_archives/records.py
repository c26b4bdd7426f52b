"""The format of layer archives, and the limits on layers and archives.

An archive is gzip-compressed and begins with MAGIC. Each entry is a line of JSON, and a file's
content follows its line. The last line is END, so that a cut archive is refused.

    ["folder", NAME, MODE]    ["file", NAME, MODE, MTIME_SECONDS, BYTES]    ["link", NAME, TARGET]

A folder's entry comes before the entries in the folder. Every line has a length limit. A reader
therefore needs constant memory for any archive.
"""

from __future__ import annotations

import posixpath
import re

MAGIC = b"detcloud-layer-1\n"
END = b'["end"]\n'
BLOCK_BYTES = 256 * 1024
LINE_BYTES_MAX = 16 * 1024
ARCHIVE_BYTES_MAX = 4 << 30
CONTENT_BYTES_MAX = 16 << 30
"""Limit on the bytes of all files of a layer."""
ENTRIES_MAX = 200_000
DEPTH_MAX = 64
MTIME_MAX = 2**33
MODE_BITS = 0o755
"""The permission bits that an archive stores, without set-id, sticky and shared write bits."""

KEY = re.compile(r"[0-9a-f]{64}")
"""The form of layer keys and of digests."""


class LayerRefused(Exception):
    """A layer or an archive breaks a rule, which the message names."""


def check_name(name: object) -> str:
    """Verify that `name` is a plain relative path, and return the name.

    Raises:
        LayerRefused: the name is no text, is empty, absolute, too deep or too long, or contains a
            null character or a part that is empty, "." or "..".
    """
    if not isinstance(name, str) or not name or len(name) > LINE_BYTES_MAX // 4 or "\0" in name:
        raise LayerRefused("an entry has no valid name")
    parts = name.split("/")
    if len(parts) > DEPTH_MAX or any(part in ("", ".", "..") for part in parts):
        raise LayerRefused(f"{name[:200]!r} is no plain relative path")
    return name


def stays_inside(name: str, target: str) -> bool:
    """Whether a link's target, read as text, lies inside the layer.

    `name` is the link's path in the layer. False for an absolute or empty target. Other links on
    the way are not considered.
    """
    if target.startswith("/") or "\0" in target or not target:
        return False
    place = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
    return place != ".." and not place.startswith("../")
