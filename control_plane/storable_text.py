"""Texts that every state table can store."""

import re
from typing import Final

TEXT_FAULT: Final = "contains a NUL character or half of a surrogate pair"
_SURROGATES: Final = re.compile("[\ud800-\udfff]")


def is_storable_text(text: str) -> bool:
    """Return whether a text contains neither NUL characters nor halves of surrogate pairs."""
    return "\0" not in text and (text.isascii() or not _SURROGATES.search(text))
