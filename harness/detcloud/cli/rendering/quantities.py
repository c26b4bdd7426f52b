"""Numbers with their units: things counted, bytes, dollars."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcloud.shared.plurals import count_text

if TYPE_CHECKING:
    from detcloud.client.records import CollectionPreview


_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"))


def duration_text(seconds: float) -> str:
    """90 -> '90 s', 150 -> '2.5 min': three digits, in the largest unit of which there are two."""
    for size, name in _UNITS:
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {name}"
    return f"{seconds:.3g} s"


def bytes_text(size: int) -> str:
    """1536 -> '1.5 KiB'."""
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def deletion_text(checkpoints: int, files: int, size: int, seconds: int) -> str:
    """(2, 6, 2048, 1) -> '2 checkpoints, 6 files, 2.0 KiB, in about 1 s'."""
    counts = f"{count_text(checkpoints, 'checkpoint')}, {count_text(files, 'file')}"
    return f"{counts}, {bytes_text(size)}, in about {duration_text(seconds)}"


def collection_text(preview: CollectionPreview) -> str:
    """The checkpoints that a collection would delete, as `deletion_text` has them."""
    return deletion_text(
        preview["delete_count"],
        preview["delete_files"],
        preview["delete_bytes"],
        preview["delete_seconds"],
    )


def dollars_text(dollars: float | None) -> str | None:
    """12.4 -> '$12.40', with more digits where there is less than a dollar; None for None."""
    if dollars is None:
        return None
    return f"${dollars:.4f}" if 0 < dollars < 1 else f"${dollars:.2f}"
