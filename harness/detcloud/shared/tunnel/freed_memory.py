"""The freed memory that a process keeps for busy streams."""

from __future__ import annotations

# More than a busy stream allocates and frees in a turn.
_KEPT_BYTES = 2 << 20


def keep_freed_memory() -> None:
    """Let the C library keep a few MB of freed memory for later allocations.

    After a block of `_KEPT_BYTES` was freed, glibc keeps twice as many bytes. By default, glibc
    keeps 128 KiB, and page faults took a third of the time of a busy stream.
    """
    bytes(_KEPT_BYTES)
