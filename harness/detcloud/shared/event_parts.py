"""The files for TensorBoard of a trial, and the parts in which a bucket has them.

Objects of a bucket are never overwritten, and an event file grows. So each upload stores the bytes
that came since the one before as another object, `PATH/part-EPOCH-VERSION-START`: the trial's
epoch, how often the file was rewritten in it, and the part's first byte. A store in a folder has
the files themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

TENSORBOARD_FOLDER = "tensorboard"
"""The folder of a checkpoint store that has them, as tensorboard/EXPERIMENT/TRIAL/PATH."""

_PART = re.compile(r"(.+)/part-(\d{1,9})-(\d{1,9})-(\d{1,15})")


@dataclass(frozen=True, order=True)
class Part:
    """A stored object: `key` is its path below the trial's folder, `start` its first byte in the
    version of the file that it is a part of.
    """

    epoch: int
    version: int
    start: int
    size: int
    key: str


@dataclass(frozen=True)
class EventFile:
    """A file as the trial wrote it: its parts, one after the other."""

    path: str
    parts: tuple[Part, ...]

    @property
    def size(self) -> int:
        """The bytes of all parts."""
        return sum(part.size for part in self.parts)

    @property
    def version(self) -> str:
        """A text that differs once the file was rewritten instead of appended to."""
        last = self.parts[-1]
        return "" if only_grows(self.path) else f"{last.epoch}.{last.version}"


def only_grows(path: str) -> bool:
    """Whether a file is one that TensorBoard's writers append to."""
    return "tfevents" in path.rpartition("/")[2]


def part_key(path: str, epoch: int, version: int, start: int) -> str:
    """The key of a part below the trial's folder; parts sort as they follow each other."""
    return f"{path}/part-{epoch:06d}-{version:06d}-{start:015d}"


def parse_part(key: str, size: int) -> tuple[str, Part]:
    """The path of the file that an object is a part of, and the part."""
    found = _PART.fullmatch(key)
    if found is None:
        return key, Part(0, 0, 0, size, key)
    path, epoch, version, start = found.groups()
    return path, Part(int(epoch), int(version), int(start), size, key)


def assemble_files(stored: Iterable[tuple[str, int]]) -> list[EventFile]:
    """The files that objects, given by key and size, are parts of, sorted by path.

    Of a file that was rewritten, the last version counts; of one that only grows, the last of
    each epoch. What follows a missing part is left out.
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
    """The parts from the first byte on, up to a gap."""
    found, end = [], 0
    for part in sorted(parts):
        if part.start == end:
            found.append(part)
            end += part.size
    return found
