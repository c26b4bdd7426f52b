"""Shards: files with many samples, followed by an index with the end and checksum of each.

The index has the samples' ends as 64-bit numbers and their CRC-32 as 32-bit numbers, in little
endian. The manifest of the cache has the index's digest, and so vouches for every sample.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import sys
import zlib
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcloud.storage.store import translate_errors

SHARD_BYTES = 64 << 20
# Large enough for few system calls, small enough for a processor's caches.
WRITE_BYTES = 256 << 10
if TYPE_CHECKING:
    from typing_extensions import Buffer

_ENDS, _SUMS = "Q", "I"
_INDEX_BYTES = array(_ENDS).itemsize + array(_SUMS).itemsize


class DamagedShard(ValueError):
    """A file differs from the shard that the manifest describes."""


@dataclass(frozen=True)
class Shard:
    """The description of a shard in the manifest."""

    file: str
    """The name of the file."""
    samples: int
    """The number of samples."""
    size_bytes: int
    """The size of the file, with the index."""
    index_sha256: str
    """The digest of the index, in hexadecimal digits."""

    @classmethod
    def parse(cls, fields: dict[str, Any]) -> Shard:
        """Return the shard of a manifest's entry.

        Raises ValueError, KeyError or TypeError for an invalid entry.
        """
        file, samples, size = fields["file"], int(fields["samples"]), int(fields["size_bytes"])
        if not isinstance(file, str) or Path(file).name != file or samples < 1:
            raise ValueError(f"{fields!r:.200} is not a valid shard")
        if size < samples * _INDEX_BYTES:
            raise ValueError(f"{size} bytes are too few for {samples} samples")
        return cls(file, samples, size, str(fields["index_sha256"]))

    def to_json(self) -> dict[str, Any]:
        """Return the shard as an entry of a manifest."""
        return asdict(self)


def write_shards(
    samples: Iterable[Sequence[Buffer]],
    folder: Path,
    prefix: str,
    finish: Callable[[Shard], None],
    shard_bytes: int = SHARD_BYTES,
) -> list[Shard]:
    """Write samples to files `PREFIX-NUMBER.bin` in the folder, and return the shards.

    A new file begins once the previous file has `shard_bytes` bytes or more. `finish` is called for
    each complete shard, which is on disk by then. Without samples, no file is written.

    Raises DetcloudError if a file exists or cannot be written. Written files stay after an error.
    """
    shards: list[Shard] = []
    writing: _ShardWriter | None = None

    def end(writer: _ShardWriter) -> None:
        with translate_errors(f"writing to {folder}"):
            shard = writer.end()
        finish(shard)
        shards.append(shard)

    try:
        for sample in samples:
            with translate_errors(f"writing to {folder}"):
                if writing is None:
                    writing = _ShardWriter(folder, f"{prefix}-{len(shards):05}.bin")
                size = writing.add(sample)
            if size >= shard_bytes:
                end(writing)
                writing = None
        if writing is not None:
            end(writing)
    finally:
        if writing is not None:
            writing.close()
    with translate_errors(f"writing to {folder}"):
        _sync_folder(folder)
    return shards


class _ShardWriter:
    """A new file to which samples are appended. `end` makes the file a shard."""

    def __init__(self, folder: Path, name: str) -> None:
        """Create the file. Raises OSError if the file exists."""
        self._name = name
        self._file = (folder / name).open("xb", WRITE_BYTES)
        self._size, self._ends, self._sums = 0, array(_ENDS), array(_SUMS)

    def add(self, sample: Sequence[Buffer]) -> int:
        """Append a sample, and return the total bytes of all samples."""
        checksum = 0
        for piece in sample:
            self._size += self._file.write(piece)
            checksum = zlib.crc32(piece, checksum)
        self._ends.append(self._size)
        self._sums.append(checksum)
        return self._size

    def end(self) -> Shard:
        """Append the index, sync the file to the disk, close the file, and return the shard."""
        index = _little_endian(self._ends) + _little_endian(self._sums)
        self._file.write(index)
        self._file.flush()
        os.fsync(self._file.fileno())
        size = self._file.tell()
        self.close()
        return Shard(self._name, len(self._sums), size, hashlib.sha256(index).hexdigest())

    def close(self) -> None:
        """Close the file. May be repeated."""
        self._file.close()


class ShardReader:
    """The samples of a shard. The file is mapped into memory at the first read."""

    def __init__(self, folder: Path, shard: Shard) -> None:
        """Create the reader of a shard in `folder`. Open no file."""
        self._path, self._shard = folder / shard.file, shard
        self._content: memoryview | None = None
        self._ends = array(_ENDS)
        self._sums = array(_SUMS)
        self._is_checked = bytearray()

    def check_file(self) -> None:
        """Raise DamagedShard unless size and index match the manifest.

        Raises OSError if the file is missing or unreadable.
        """
        with self._path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            if size != self._shard.size_bytes:
                raise DamagedShard(f"{self._path} has {size} bytes, not {self._shard.size_bytes}")
            file.seek(size - self._index_bytes)
            self._check_index(file.read())

    def check_samples(self) -> None:
        """Raise DamagedShard unless the file and the checksum of every sample are right.

        Raises OSError if the file is missing or unreadable.
        """
        self.check_file()
        for number in range(self._shard.samples):
            self.read(number)

    def read(self, number: int) -> memoryview:
        """Return the bytes of a sample. The checksum is compared at the first read in this process.

        Raises DamagedShard, or OSError if the file cannot be read.
        """
        content = self._content if self._content is not None else self._open()
        sample = content[self._ends[number - 1] if number else 0 : self._ends[number]]
        if not self._is_checked[number]:
            if zlib.crc32(sample) != self._sums[number]:
                raise DamagedShard(f"{self._path}: sample {number} is not what was written")
            self._is_checked[number] = 1
        return sample

    @property
    def _index_bytes(self) -> int:
        """The size of the index."""
        return self._shard.samples * _INDEX_BYTES

    def _open(self) -> memoryview:
        """Map the file into memory, read and check the index, and return the file's content.

        Raises DamagedShard if the size or index is wrong, or OSError if the file cannot be read.
        """
        with self._path.open("rb") as file:
            if os.fstat(file.fileno()).st_size != self._shard.size_bytes:
                raise DamagedShard(f"{self._path} has another size than its manifest says")
            content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        index = bytes(content[-self._index_bytes :])
        self._check_index(index)
        ends_bytes = self._shard.samples * self._ends.itemsize
        self._ends = _from_little_endian(_ENDS, index[:ends_bytes])
        self._sums = _from_little_endian(_SUMS, index[ends_bytes:])
        self._is_checked = bytearray(self._shard.samples)
        self._content = content
        return content

    def _check_index(self, index: bytes) -> None:
        """Raise DamagedShard unless the index has the digest of the manifest."""
        if hashlib.sha256(index).hexdigest() != self._shard.index_sha256:
            raise DamagedShard(f"{self._path}: the index at its end is not what was written")


def _little_endian(numbers: array[int]) -> bytes:
    """Return the numbers as bytes in little endian, on every machine. The array is unchanged."""
    if sys.byteorder == "big":
        numbers = array(numbers.typecode, numbers)
        numbers.byteswap()
    return numbers.tobytes()


def _from_little_endian(typecode: str, data: bytes) -> array[int]:
    """Return the numbers in bytes of `_little_endian`."""
    numbers = array(typecode)
    numbers.frombytes(data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _sync_folder(folder: Path) -> None:
    """Sync the folder's entries to the disk. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
