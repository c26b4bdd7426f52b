"""The limits of a client of HDFS."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HdfsLimits:
    """The sizes of a client's requests."""

    fetched_part_bytes: int = 64 << 20
    """The size of a part of a fetched file.

    No part is completely in memory, and each part uses two connections.
    """
    names_bytes_max: int = 16 << 10
    """The largest size of the names of parts in a request to join the parts.

    A namenode accepts 64 KB of request line and headers.
    """


HDFS_LIMITS = HdfsLimits()
