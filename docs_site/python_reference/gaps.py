"""Finds entries that lack an example or a description."""

from __future__ import annotations

import re
from collections.abc import Iterator

from docs_site.python_reference.entries import Entry


def find_gaps(entry: Entry, *, has_methods: bool) -> Iterator[str]:
    """Yield a line for each gap of a class or function.

    Args:
        entry: the class or function.
        has_methods: whether each method needs an example, or a call in the example of its class.
    """
    if not entry.examples:
        yield f"{entry.title} has no example: add a cell to docs/python/examples"
    for part in (entry, *(entry.members if has_methods else ())):
        yield from _text_gaps(part)
        if part is not entry and not part.examples and not mentions(entry.examples, part):
            yield f"{part.title} has no example: add a cell to docs/python/examples"


def mentions(examples: list[str], method: Entry) -> bool:
    """Return whether the examples of a class call or define a method."""
    name = method.title.rpartition(".")[2]
    return any(re.search(rf"\b{name}\b", code) for code in examples)


def find_field_gaps(entry: Entry) -> Iterator[str]:
    """Yield a line for each field of a record without a text."""
    for field in entry.fields:
        if not field.text:
            yield f"the field {field.name} of {entry.title} has no docstring"


def _text_gaps(entry: Entry) -> Iterator[str]:
    """Yield a line for a missing docstring, and for parameters that the docstring leaves out.

    The first sentence may explain a single parameter. Several parameters need `Args`.
    """
    if not entry.text:
        yield f"{entry.title} has no docstring"
    missing = [parameter.name for parameter in entry.parameters if not parameter.text]
    if missing and (len(entry.parameters) > 1 or len(missing) < len(entry.parameters)):
        yield f"Args of {entry.title} lack {', '.join(missing)}"
    if re.search(r"\bRaises\b", entry.text):
        yield f"the text of {entry.title} has errors: move them to `Raises:`"
