"""The limits of a client of Amazon S3 or of an S3-compatible store."""

from __future__ import annotations

from dataclasses import dataclass

from detcloud.shared.transfers import FETCHED_BYTES, PARTS_AT_ONCE


@dataclass(frozen=True)
class S3Limits:
    """The sizes and the numbers of parts of a client's transfers."""

    sent_part_bytes: int = 8 << 20
    """The size of a part of a sent file, unless the file would have too many parts.

    S3 requires at least 5 MiB. Of each part, only a block is in memory.
    """
    sent_at_once: int = 10
    """The number of parts of a sent file that are sent at a time."""
    written_at_once: int = PARTS_AT_ONCE
    """The largest number of parts in memory that are sent at a time."""
    fetched_part_bytes: int = FETCHED_BYTES
    """The size of a part of a fetched object."""


S3_LIMITS = S3Limits()
