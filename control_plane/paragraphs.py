"""Paragraphs of generated references: a table contains the first paragraph of each text."""

from collections.abc import Iterator
from inspect import cleandoc


def joined_paragraphs(text: str) -> str:
    """Return the text with each paragraph on a single line, and a blank line between paragraphs."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in cleandoc(text).split("\n\n"))


def first_paragraph(text: str) -> str:
    """Return the first paragraph of a result of `joined_paragraphs`."""
    return text.partition("\n\n")[0]


def further_paragraphs(name: str, text: str) -> Iterator[str]:
    """Yield Markdown lines with all paragraphs but the first, after the name in bold type.

    Yield nothing for a text of one paragraph.
    """
    further = text.partition("\n\n")[2]
    if further:
        yield f"**{name}.** {further}"
        yield ""
