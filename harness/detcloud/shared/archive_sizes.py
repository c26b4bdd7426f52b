"""Sentences that name the largest parts of a folder, for messages about exceeded limits."""

from collections import Counter
from collections.abc import Iterable

from detcloud.shared.archive_limits import display_mebibytes

_SHOWN_MAX = 3
# Files and folders with a smaller share of the bytes do not explain an exceeded limit.
_SHARE_MIN = 0.01
# A folder with a larger share of its parent folder is not named in addition to the parent.
_PARENT_SHARE_MAX = 0.9


def describe_largest(sizes: Iterable[tuple[str, int]]) -> str:
    """Return a clause that names the three largest folders and the three largest files.

    An example is `the largest folders are .venv/ (200.0 MiB), data/ (9.0 MiB); the largest files
    are ...`. The largest item comes first. A folder counts the files at any depth. Empty items,
    items below 1 % of all bytes, and folders with more than 90 % of the bytes of their parent
    folder are omitted. A half without items is omitted. Return "" if no item is left.

    Args:
        sizes: the path of each file, with `/` between the parts, and the file's bytes. Of equal
            paths, the last counts.
    """
    files = dict(sizes)
    total = sum(files.values())
    folders: Counter[str] = Counter()
    for name, size in files.items():
        for folder in _folders_around(name):
            folders[folder] += size
    parts = []
    for noun, found in (
        ("folders", _distinct_folders(folders)),
        ("files", list(files.items())),
    ):
        largest = sorted(found, key=lambda entry: -entry[1])[:_SHOWN_MAX]
        shown = [
            f"{name} ({display_mebibytes(size)})"
            for name, size in largest
            if size >= max(1, total * _SHARE_MIN)
        ]
        if shown:
            parts.append(f"the largest {noun} are {', '.join(shown)}")
    return "; ".join(parts)


def describe_fullest(names: Iterable[str]) -> str:
    """Return a clause that names the three folders with the most names below them.

    An example is `the folders with most of them are .venv/ (98,000), data/ (12)`. The fullest
    folder comes first. Names at any depth count. Folders with more than 90 % of the names of their
    parent folder are omitted. Return "" without folders. `names` are the paths of files and
    folders, with `/` between the parts and none at the end.
    """
    folders = Counter(folder for name in names for folder in _folders_around(name))
    found = sorted(_distinct_folders(folders), key=lambda entry: -entry[1])[:_SHOWN_MAX]
    shown = ", ".join(f"{name} ({count:,})" for name, count in found)
    return f"the folders with most of them are {shown}" if shown else ""


def _folders_around(name: str) -> list[str]:
    """Return the parent folders of a path: 'a/b/c' -> ['a/', 'a/b/']. Empty without a folder."""
    return [name[: place + 1] for place, character in enumerate(name) if character == "/"]


def _distinct_folders(folders: Counter[str]) -> list[tuple[str, int]]:
    """Return the folders with sizes, in the order of `folders`.

    Folders with more than _PARENT_SHARE_MAX of the size of the parent folder are left out.
    """
    found = []
    for folder, size in folders.items():
        outer = folder[: folder.rstrip("/").rfind("/") + 1]
        if not outer or size <= folders[outer] * _PARENT_SHARE_MAX:
            found.append((folder, size))
    return found
