"""Anchors of headings by GitHub's rules, so that a link works in the repository and in the site."""

from __future__ import annotations

import re
from collections.abc import Callable

_LINK = re.compile(r"\[(.*?)\]\(.*?\)")
_OTHER = re.compile(r"[^\w\- ]")


def anchor_of(heading: str, separator: str = "-") -> str:
    """Return the anchor of a heading without its number among equal headings."""
    return _OTHER.sub("", _LINK.sub(r"\1", heading).lower()).replace(" ", separator)


def build_slugify() -> Callable[[str, str], str]:
    """Return `anchor_of` for the generator's configuration, which names a factory."""
    return anchor_of
