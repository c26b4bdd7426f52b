"""Folders nested too deep for a path."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from detcloud.shared.files import delete_tree


@contextmanager
def deep_folder(root: Path, depth: int) -> Iterator[None]:
    """Create `depth` nested folders below `root`, with a file in the innermost folder.

    Remove the folders at the end, because pytest cannot remove such folders.
    """
    try:
        _make_deep_folder(root, depth)
        yield
    finally:
        delete_tree(root / "d")


def _make_deep_folder(root: Path, depth: int) -> None:
    folder = os.open(root, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=folder)
        below = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = below
    file = os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=folder)
    os.write(file, b"deep")
    os.close(file)
    os.close(folder)
