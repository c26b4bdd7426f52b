"""Finds the records of a page: classes in its signatures and fields without an own entry."""

from __future__ import annotations

from collections.abc import Iterator

from docs_site.python_reference.entries import Entry
from docs_site.python_reference.subjects import Subject


def record_subjects(entries: list[Entry], package: str, documented: set[str]) -> list[Subject]:
    """Return the classes of `package` that the entries mention.

    Args:
        entries: the entries of a page.
        package: the package of the records.
        documented: the canonical paths of classes that have an entry.
    """
    paths = {
        path
        for entry in entries
        for path in _class_paths(entry)
        if path.startswith(f"{package}.") and path not in documented
    }
    return [Subject(path, path.rpartition(".")[2]) for path in sorted(paths)]


def _class_paths(entry: Entry) -> Iterator[str]:
    """Yield the paths of all classes in the types of an entry and its methods."""
    for described in (*entry.parameters, *entry.fields):
        yield from described.classes
    if entry.returns is not None:
        yield from entry.returns.classes
    for member in entry.members:
        yield from _class_paths(member)
