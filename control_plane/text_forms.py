"""Forms of texts that requests and configurations must have: a regular expression, and words for
the reader of an error, who need not know such expressions.
"""

from typing import Final

_WORDS: Final[dict[str, str]] = {}


def text_form(pattern: str, words: str) -> str:
    """Return the pattern, which errors describe by these words from now on: what a text of that
    form is, as it stands after "must be".
    """
    _WORDS[pattern] = words
    return pattern


def form_words(pattern: str) -> str:
    """The words for the form of a pattern; vague ones for a pattern that is no `text_form`."""
    return _WORDS.get(pattern, "of another form")


PRINTABLE_TEXT: Final = text_form(r"^[\x20-\x7e]+$", "printable characters of ASCII")
