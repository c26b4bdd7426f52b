"""Nouns with the indefinite article, for messages about types."""

from __future__ import annotations

import re

# A noun of "an". A leading "one" or "eu", and most leading "u" of types, sound like a consonant.
_VOWEL_SOUND = re.compile(r"(?!one|eu)[aeio]|ndarray", re.IGNORECASE)


def with_article(noun: str) -> str:
    """Return a noun with the article by sound: "an int", "a dict", "a UUID".

    The rules fit names of types. Other nouns may get the wrong article, such as "hour".
    """
    return f"{'an' if _VOWEL_SOUND.match(noun) else 'a'} {noun}"
