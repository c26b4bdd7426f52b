"""A trial's TensorBoard files, and the parts of the files in a bucket.

Objects of a bucket are never overwritten, but event files grow. Each upload therefore stores the
new bytes as a new object, `PATH/part-EPOCH-VERSION-START`. EPOCH is the trial's epoch, VERSION the
number of rewrites of the file in the epoch, START the offset of the part's first byte. A store in a
folder contains the files themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

TENSORBOARD_FOLDER = "tensorboard"
"""The folder of the files in a checkpoint store: tensorboard/EXPERIMENT/TRIAL/PATH."""

# The exact form of `part_key`, since trials may call their own files `part-1-1-1`.
_PART = re.compile(r"(.+)/part-([0-9]{6,9})-([0-9]{6,9})-([0-9]{15,16})", re.DOTALL)


@dataclass(frozen=True, order=True)
class Part:
    """A stored object with a part of a file. Parts sort by epoch, version and start.

    The epoch counts the runs of the trial from 1. The version counts rewrites in an epoch.
    """

    epoch: int
    """The trial's epoch in which the part was written."""
    version: int
    """The number of rewrites of the file in the epoch."""
    start: int
    """The offset of the part's first byte in this version of the file."""
    size: int
    """The part's bytes."""
    key: str
    """The object's path below the trial's folder."""


@dataclass(frozen=True)
class EventFile:
    """A file as the trial wrote the file, with all parts in order. It has at least one part."""

    path: str
    parts: tuple[Part, ...]

    @property
    def size(self) -> int:
        """The bytes of all parts."""
        return sum(part.size for part in self.parts)

    @property
    def version(self) -> str:
        """A text that changes when the file is rewritten. "" for a file that only grows.

        Otherwise the epoch, which counts the runs of the trial, and the version of the last part,
        for example `3.1`.
        """
        last = self.parts[-1]
        return "" if only_grows(self.path) else f"{last.epoch}.{last.version}"


def only_grows(path: str) -> bool:
    """Whether the file's name marks an event file, to which TensorBoard's writers only append.

    The last name of the path then contains `tfevents`. Names of folders do not count.
    """
    return "tfevents" in path.rpartition("/")[2]


def part_key(path: str, epoch: int, version: int, start: int) -> str:
    """Return a part's key below the trial's folder, `PATH/part-EPOCH-VERSION-START`.

    `epoch` counts the runs of the trial, `version` the rewrites of the file in the epoch, and
    `start` is the offset of the part's first byte. The numbers have leading zeros: 6, 6 and 15
    digits. The keys of a path therefore sort in the order of the parts.
    """
    return f"{path}/part-{epoch:06d}-{version:06d}-{start:015d}"


def parse_part(key: str, size: int) -> tuple[str, Part]:
    """Return the path of the file that an object belongs to, and the part.

    The part has the key and the size in bytes as given. An object whose key is not of the form of
    `part_key`, with numbers of up to 9, 9 and 16 digits, is a whole file with epoch, version and
    start 0. No error is raised.
    """
    found = _PART.fullmatch(key)
    if found is None:
        return key, Part(0, 0, 0, size, key)
    path, epoch, version, start = found.groups()
    return path, Part(int(epoch), int(version), int(start), size, key)


def assemble_files(stored: Iterable[tuple[str, int]]) -> list[EventFile]:
    """Return the files of stored objects, sorted by path. `stored` are the keys and sizes.

    The objects may come in any order. Epochs are the runs of the trial, as in `part_key`. Only the
    last version in the last epoch counts, and of a file for which `only_grows` holds the last
    version of each epoch, in the order of the epochs. In each version, a part counts only if it
    begins where the part before ends, so parts after a missing part are left out. Files without a
    first part are left out. An object that is no part is a whole file of epoch 0.
    """
    versions: dict[str, dict[tuple[int, int], list[Part]]] = {}
    for key, size in stored:
        path, part = parse_part(key, size)
        versions.setdefault(path, {}).setdefault((part.epoch, part.version), []).append(part)
    files = []
    for path, of_path in sorted(versions.items()):
        newest = {epoch: version for epoch, version in sorted(of_path)}
        epochs = sorted(newest) if only_grows(path) else [max(newest)]
        parts = [part for number in epochs for part in _contiguous(of_path[number, newest[number]])]
        if parts:
            files.append(EventFile(path, tuple(parts)))
    return files


def _contiguous(parts: list[Part]) -> list[Part]:
    """Return the sorted parts from the first byte up to a gap. Empty without a first part.

    Parts that overlap a part before are left out.
    """
    found, end = [], 0
    for part in sorted(parts):
        if part.start == end:
            found.append(part)
            end += part.size
    return found
