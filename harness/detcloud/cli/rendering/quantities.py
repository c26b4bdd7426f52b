"""Numbers with their units: things counted, bytes, dollars."""

from __future__ import annotations


def count_text(number: int, noun: str) -> str:
    """(1, 'step') -> '1 step', (2, 'step') -> '2 steps'."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def bytes_text(size: int) -> str:
    """1536 -> '1.5 KiB'."""
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def dollars_text(dollars: float | None) -> str | None:
    """12.4 -> '$12.40', with more digits where there is less than a dollar; None for None."""
    if dollars is None:
        return None
    return f"${dollars:.4f}" if 0 < dollars < 1 else f"${dollars:.2f}"
