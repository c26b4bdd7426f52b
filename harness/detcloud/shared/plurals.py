"""Counts with a noun in singular or plural."""

from __future__ import annotations


def count_text(number: int, noun: str, plural: str | None = None) -> str:
    """Return a count with its noun: '1 step', '2 steps', or with `plural` '2 batches'.

    Without `plural`, the plural is the noun with an s. Only the number 1 is singular.
    """
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"
