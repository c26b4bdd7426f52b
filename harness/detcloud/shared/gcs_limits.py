"""The limits of a client of Google Cloud Storage."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GcsLimits:
    """The sizes and durations of a client's requests."""

    part_bytes: int = 16 << 20
    """The size of a part of a large file, a multiple of 256 KiB as Google requires."""
    block_bytes: int = 256 * 1024
    """The largest number of bytes that a reader yields at a time."""
    repeated_seconds_max: float = 15.0
    """The time during which a failed deletion is repeated.

    Callers that delete many objects must learn soon that the store is busy.
    """


GCS_LIMITS = GcsLimits()
