"""The facts of each class and function of the reference, before rendering."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Described:
    """A described part of an entry: a parameter, a field, a returned value or an error."""

    name: str
    """The name; empty for a returned value."""
    type: str
    """The type; empty for an error, whose type is the name."""
    text: str
    """The description in Markdown; empty without one."""
    classes: tuple[str, ...] = ()
    """The paths of the classes of `detcloud` in the type."""


@dataclass
class Entry:
    """A class, function or method."""

    path: str
    """The path for imports, such as `detcloud.client.Client.jobs`."""
    title: str
    """The heading, such as `Client.jobs`."""
    kind: str
    """`class` or `function`."""
    signature: str
    """The signature as Python writes it; empty for a class that users do not create."""
    text: str = ""
    """The docstring without sections, in Markdown."""
    bases: list[str] = field(default_factory=list)
    """The paths of base classes that the reference describes."""
    parameters: list[Described] = field(default_factory=list)
    returns: Described | None = None
    """The returned or yielded value. None for a class, and for a function that returns None."""
    errors: list[Described] = field(default_factory=list)
    fields: list[Described] = field(default_factory=list)
    """The attributes of an object, the keys of a dictionary, or the members of an enum."""
    members: list[Entry] = field(default_factory=list)
    """The methods of a class, in the order of the source."""
    examples: list[str] = field(default_factory=list)
    """Python code."""

    @property
    def summary(self) -> str:
        """The first sentence of the text."""
        paragraph = " ".join(self.text.partition("\n\n")[0].split())
        end = paragraph.find(". ")
        return paragraph if end < 0 else paragraph[: end + 1]


@dataclass(frozen=True)
class Page:
    """A page of the reference with its entries."""

    file: str
    """The name in docs/python."""
    title: str
    introduction: str
    entries: list[Entry]
    setup: str = ""
    """The code that precedes the examples of the page; empty without examples."""
