"""Patterns that choose files by their paths, with the rules of Python's `glob`.

A `*`, `?` or `[...]` matches within one name and `**` any number of folders, none included; a name
that begins with a dot has to be written with it. A pattern that matches a folder chooses all that
is in it. `detcloud checkpoint rm --glob` had the same rules in Determined.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

# Of one request, whose URL has them, and of one checkpoint, with which lists answer them.
PATTERNS_MAX = 20
PATTERN_LENGTH_MAX = 200

_ANY_FOLDERS = "**"


def matches_any(path: str, patterns: Iterable[str]) -> bool:
    """Whether one of the patterns chooses the file at this path, whose names '/' separates."""
    return any(matches_pattern(path, pattern) for pattern in patterns)


def matches_pattern(path: str, pattern: str) -> bool:
    """Whether the pattern chooses the file at this path. The time it takes grows with the product
    of their lengths.
    """
    names, parts = path.split("/"), pattern.rstrip("/").split("/")
    # What is in a folder, and not a file of the folder's name.
    is_folder = parts[-1] == _ANY_FOLDERS and any(part != _ANY_FOLDERS for part in parts)
    if parts[-1] == _ANY_FOLDERS and not is_folder:
        parts.append("*")
    while is_folder and parts[-1] == _ANY_FOLDERS:
        parts.pop()
    # How many names of the path the parts of the pattern so far may stand for.
    counts = {0}
    for part in parts:
        counts = _counts_after(part, names, counts)
    return min(counts, default=len(names)) < len(names) if is_folder else bool(counts)


def _counts_after(part: str, names: list[str], counts: set[int]) -> set[int]:
    """How many names the pattern may stand for with one more part."""
    if part != _ANY_FOLDERS:
        return {
            count + 1 for count in counts if count < len(names) and _matches(names[count], part)
        }
    reached: set[int] = set()
    for count in counts:
        while count not in reached:
            reached.add(count)
            if count == len(names) or names[count].startswith("."):
                break
            count += 1
    return reached


def _matches(name: str, part: str) -> bool:
    is_hidden = name.startswith(".") and not part.startswith(".")
    return not is_hidden and fnmatchcase(name, part)
