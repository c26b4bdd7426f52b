"""One file for HDFS that comes in parts, each a file beside the others, which HDFS joins.

A part is compared with what was sent before it gets its name, so whatever has one is whole. Each is
one block, of one size but the last one's, since older namenodes join full blocks alone. CONCAT
moves the blocks of many parts at once to the end of the first part's file, whose length says
exactly how many parts it has, whatever process died or answer was lost meanwhile. Appending to a
file would not do: a datanode whose answer was late may append a second time, and a writer that died
keeps its lease, and leaves an unknown length.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from detcloud.shared.bucket_errors import BucketError
from detcloud.shared.file_parts import FilePart, open_source
from detcloud.shared.http import backoff_seconds
from detcloud.shared.upload_parts import PartSizes
from detcloud.shared.webhdfs_client import ATTEMPTS_MAX, HdfsError
from detcloud.shared.webhdfs_paths import NOT_FOUND, HdfsPaths

if TYPE_CHECKING:
    from detcloud.shared.webhdfs import HdfsFolder

# Of the names in one request; its line and headers may take 64 KB at a namenode.
NAMES_BYTES_MAX = 16 << 10
_JOINED = "joined"
_PART = re.compile(r"part-([0-9]{5})(?:-[0-9a-f]{32})?")


class JoinRefused(BucketError):
    """HDFS joins no files there."""


class HdfsParts:
    """The parts of a file in a folder of their own; its methods raise BucketError.

    May be used by several threads and processes at once, which all have the same file.
    """

    def __init__(self, paths: HdfsPaths, folder: str, path: str, sizes: PartSizes) -> None:
        """`folder` has the parts, and `path` is the place of the file."""
        self._paths = paths
        self._folder = folder
        self._path = path
        self._joined = f"{folder}/{_JOINED}"
        self.sizes = sizes

    def stored_numbers(self) -> list[int]:
        """The numbers, from 1, of the parts that are there."""
        if self._paths.status(self._path) is not None:
            return [*self.sizes.numbers]
        joined, parts = self._read_folder()
        return sorted({*range(1, joined + 1), *parts})

    def has(self, number: int, md5: str) -> bool:
        """Whether that part is there or needed no more."""
        if self._paths.status(self._path) is not None:
            return True
        joined, parts = self._read_folder()
        return number <= joined or parts.get(number) == f"part-{number:05}-{md5}"

    def store(self, number: int, part: FilePart, md5: str = "") -> None:
        """Store a part, in the place of another one of that number with another MD5."""
        name = f"part-{number:05}-{md5}" if md5 else f"part-{number:05}"
        staged = self._paths.write(self._folder, part, self.sizes.part_bytes)
        try:
            if not self._paths.rename(staged, f"{self._folder}/{name}"):
                # It was here before, by this writer or another one, and was compared then.
                self._paths.remove(staged)
        except BaseException:
            self._paths.discard(staged)
            raise
        if md5:
            for other in self._names(number) - {name}:
                self._paths.remove(f"{self._folder}/{other}")

    def join(self) -> bool:
        """Make the file of its parts; False where there is one already, and BucketError if a part
        is missing.
        """
        failures = 0
        while self._paths.status(self._path) is None:
            joined, parts = self._read_folder()
            missing = {*self.sizes.numbers} - {*range(1, joined + 1)} - parts.keys()
            if missing:
                if self._paths.status(self._path) is not None:
                    # Another process was faster, and has removed the folder.
                    break
                raise BucketError(f"part {min(missing)} of {self._path} is missing")
            try:
                if self._join_some(joined, parts):
                    self._paths.discard(self._folder, recursive=True)
                    return True
            except JoinRefused:
                raise
            except BucketError:
                # Another process may be at it, and what it has moved is not where it was. An
                # answer that was lost looks alike.
                failures += 1
                if failures >= ATTEMPTS_MAX:
                    raise
                time.sleep(backoff_seconds(failures))
        self._paths.discard(self._folder, recursive=True)
        return False

    def _join_some(self, joined: int, parts: Mapping[int, str]) -> bool:
        """Do the next step with so many parts joined; whether that published the file."""
        if joined == self.sizes.count:
            return self._paths.rename(self._joined, self._path)
        if not joined:
            self._paths.rename(f"{self._folder}/{parts[1]}", self._joined)
            return False
        names = (f"{self._folder}/{parts[number]}" for number in self.sizes.numbers[joined:])
        try:
            self._paths.client.concat(self._joined, [*_some_names(names)])
        except HdfsError as error:
            if error.kind == NOT_FOUND:
                raise
            raise JoinRefused(f"HDFS joins no parts there: {error}") from None
        return False

    def _read_folder(self) -> tuple[int, dict[int, str]]:
        """How many parts are joined, and the name of the file of each part, by its number."""
        joined, parts = 0, dict[int, str]()
        found = self._paths.entries(self._folder)
        # The newest of a number counts.
        for entry in sorted(found, key=lambda item: item.number):
            match = _PART.fullmatch(entry.name)
            if entry.name == _JOINED:
                joined = self._joined_count(entry.length)
            elif match and self._is_size_of(int(match[1]), entry.length):
                parts[int(match[1])] = entry.name
        return joined, parts

    def _joined_count(self, length: int) -> int:
        """How many parts a joined file of that length has. Raises BucketError for one that is
        none of ours.
        """
        whole, rest = divmod(length, self.sizes.part_bytes)
        if length == self.sizes.size:
            return self.sizes.count
        if rest or not 0 < whole < self.sizes.count:
            self._paths.discard(self._folder, recursive=True)
            raise BucketError(f"{self._joined} has {length} bytes: upload {self._path} again")
        return whole

    def _is_size_of(self, number: int, length: int) -> bool:
        return number in self.sizes.numbers and length == self.sizes.size_of(number)

    def _names(self, number: int) -> set[str]:
        """The names of all files of a part."""
        names = (entry.name for entry in self._paths.entries(self._folder))
        return {
            name for name in names if (match := _PART.fullmatch(name)) and int(match[1]) == number
        }


class HdfsPartsUpload:
    """The upload in parts of a file of `size` bytes to a key. Every method raises BucketError.

    Parts come through the cluster: HDFS signs nothing.
    """

    is_in_order = False
    whole_bytes_max: int | None = None

    def __init__(self, folder: HdfsFolder, key: str, size: int) -> None:
        self.sizes = PartSizes(size)
        self._parts = folder.parts_of(key, self.sizes)

    def stored_parts(self) -> list[int]:
        """The numbers, from 1, of the parts that are there."""
        return self._parts.stored_numbers()

    def sign_part(self, number: int, md5: str, seconds: int) -> None:
        """None: nothing is signed."""

    def store_part(self, number: int, md5: str, source: str) -> None:
        """Store the part that lies in a file of this machine."""
        if self._parts.has(number, md5):
            return
        with open_source(Path(source)) as file:
            self._parts.store(number, FilePart(file, 0, file.size), md5)

    def join(self) -> bool:
        """Make the file of its parts; False where there is one already, and BucketError if a part
        is missing.
        """
        return self._parts.join()


def _some_names(names: Iterator[str]) -> Iterator[str]:
    """Yield as many of the names as one request may have, and one at least."""
    room = NAMES_BYTES_MAX
    for name in names:
        length = len(quote(name, safe="")) + len("%2C")
        if length > room and room < NAMES_BYTES_MAX:
            return
        yield name
        room -= length
