"""Generated names of experiments."""

from __future__ import annotations

from typing import Final

_MANNERS: Final = ("brave", "calm", "eager", "gentle", "keen", "lively", "proud", "quick", "steady")
_COLORS: Final = ("amber", "azure", "coral", "cyan", "gold", "green", "indigo", "ivory", "olive")
_ANIMALS: Final = ("badger", "crane", "dolphin", "falcon", "fox", "heron", "lynx", "otter", "raven")


def seeded_words(seed: int) -> str:
    """Return three words that depend only on `seed`, like "quick-amber-fox".

    Equal seeds, and seeds that differ by a multiple of 729, give the same words.
    """
    words = []
    for choices in (_MANNERS, _COLORS, _ANIMALS):
        seed, i = divmod(seed, len(choices))
        words.append(choices[i])
    return "-".join(words)
