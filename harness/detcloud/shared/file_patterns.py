"""Patterns that select files by path, with the rules of Python's `glob`.

A `*`, `?` or `[...]` matches within a single name. `**` matches any number of folders, also zero. A
name with a leading dot only matches a pattern with the dot. A pattern that matches a folder selects
all files in the folder. `detcloud checkpoint rm --glob` had these rules in Determined.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

# The limit for a request, whose URL contains the patterns, and for the stored patterns of a
# checkpoint, which lists return.
PATTERNS_MAX = 20
PATTERN_LENGTH_MAX = 200

_ANY_FOLDERS = "**"


def matches_any(path: str, patterns: Iterable[str]) -> bool:
    """Whether any of the patterns selects the file at this path, as `matches_pattern` does.

    False without patterns.
    """
    return any(matches_pattern(path, pattern) for pattern in patterns)


def matches_pattern(path: str, pattern: str) -> bool:
    """Whether the pattern selects the file at this path, with '/' between names.

    The pattern must match the path from the first name on, to the end or to a folder on the path: a
    pattern that matches a folder selects all files in the folder, at any depth. `*`, `?` and
    `[...]` match within a single name, with regard to case. `**` matches any number of folders,
    also zero. A pattern that ends with `/**` selects all content of the folder in front, also
    hidden files, and not a file of the folder's name. Elsewhere, a name with a leading dot only
    matches a part of the pattern with the dot, so `**/x` selects no `x` in a hidden folder.

    Trailing '/' of the pattern are ignored. An empty pattern, or a pattern with a leading '/',
    selects no relative path. The running time grows with the product of the lengths of path and
    pattern.
    """
    names, parts = path.split("/"), pattern.rstrip("/").split("/")
    # A pattern ending with `**` selects the content of a folder, not a file of the folder's name.
    is_folder = parts[-1] == _ANY_FOLDERS and any(part != _ANY_FOLDERS for part in parts)
    if parts[-1] == _ANY_FOLDERS and not is_folder:
        parts.append("*")
    while is_folder and parts[-1] == _ANY_FOLDERS:
        parts.pop()
    # The possible numbers of the path's names that the pattern's parts so far can match.
    counts = {0}
    for part in parts:
        counts = _counts_after(part, names, counts)
    return min(counts, default=len(names)) < len(names) if is_folder else bool(counts)


def _counts_after(part: str, names: list[str], counts: set[int]) -> set[int]:
    """Return the possible numbers of matched names after a further part of the pattern.

    `counts` are the possible numbers before the part. A part other than `**` matches a single name.
    `**` matches any number of names, also zero, up to a name with a leading dot. Empty if nothing
    matches.
    """
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
