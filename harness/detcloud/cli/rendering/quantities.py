"""Texts of quantities with units: durations, bytes, deletions and dollars."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcloud.shared.plurals import count_text

if TYPE_CHECKING:
    from detcloud.client.records import CollectionPreview


_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"))


def duration_text(seconds: float) -> str:
    """Return a duration with three digits: `90 s` for 90, `2.5 min` for 150.

    The unit is the largest of s, min, h and d of which the duration has at least two. Shorter
    durations are in seconds.
    """
    for size, name in _UNITS:
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {name}"
    return f"{seconds:.3g} s"


def bytes_text(size: int) -> str:
    """Return a size with a binary unit up to TiB, with a single decimal: `1.5 KiB` for 1536.

    Sizes below 1 KiB have no decimal.
    """
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def deletion_text(checkpoints: int, files: int, size: int, seconds: int) -> str:
    """Return `2 checkpoints, 6 files, 2.0 KiB, in about 1 s` for (2, 6, 2048, 1).

    Args:
        size: the number of bytes.
        seconds: the estimated duration of the deletion.
    """
    counts = f"{count_text(checkpoints, 'checkpoint')}, {count_text(files, 'file')}"
    return f"{counts}, {bytes_text(size)}, in about {duration_text(seconds)}"


def collection_text(preview: CollectionPreview) -> str:
    """Return the `deletion_text` of the checkpoints that a garbage collection would delete. No
    request is sent.
    """
    return deletion_text(
        preview["delete_count"],
        preview["delete_files"],
        preview["delete_bytes"],
        preview["delete_seconds"],
    )


def hours_text(hours: float) -> str:
    """Return hours with a decimal, or with three decimals below an hour."""
    return f"{hours:.3f}" if 0 < hours < 1 else f"{hours:.1f}"


def percent_text(percent: float | None) -> str | None:
    """Return a percentage with a decimal, for example `41.5 %`. A missing percentage is None."""
    return None if percent is None else f"{percent:.1f} %"


def dollars_text(dollars: float | None) -> str | None:
    """Return `$12.40` for 12.4, with four decimals between $0 and $1, and `$0.00` for 0. Return
    None for None.
    """
    if dollars is None:
        return None
    return f"${dollars:.4f}" if 0 < dollars < 1 else f"${dollars:.2f}"
