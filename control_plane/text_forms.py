"""Forms of texts in requests and configurations.

A form is a regular expression with a description for error messages, because users need not
understand regular expressions.
"""

from typing import Final

_WORDS: Final[dict[str, str]] = {}


def text_form(pattern: str, words: str) -> str:
    """Register the description of a pattern, and return the pattern.

    Args:
        words: the description of a valid text, as it stands after "must be".
    """
    _WORDS[pattern] = words
    return pattern


def form_words(pattern: str) -> str:
    """Return the words for a pattern that `text_form` registered, else "of another form"."""
    return _WORDS.get(pattern, "of another form")


PRINTABLE_TEXT: Final = text_form(r"^[\x20-\x7e]+$", "printable characters of ASCII")
