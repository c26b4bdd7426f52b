"""The parts of a file that is sent, each read as it is asked for, and so never whole in memory."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from detcloud.shared.bucket_errors import BucketError

# Large enough that a part is few calls, and small enough to stay in a processor's cache.
BLOCK_BYTES = 256 * 1024


class FilePart:
    """A stretch of an open file that is read like a file of its own, by one thread at a time.

    A block that was read is overwritten by the next one. Reading raises BucketError where the file
    has become shorter.
    """

    def __init__(self, source: SourceFile, start: int, length: int) -> None:
        self._source = source
        self._start = start
        self._length = length
        self._position = 0
        self._buffer: memoryview | None = None

    def __len__(self) -> int:
        return self._length

    def read(self, size: int = -1) -> memoryview:
        """The next block, which is larger or smaller than `size` and empty at the end."""
        if self._buffer is None:
            self._buffer = memoryview(bytearray(min(BLOCK_BYTES, self._length)))
        block = self._buffer[: self._length - self._position]
        count = self._source.read_into(block, self._start + self._position)
        self._position += count
        return block[:count]

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a place of the part, as a file does."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._length}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        """The place in the part."""
        return self._position

    def blocks(self) -> Iterator[memoryview]:
        """All blocks from the beginning; the part is at its beginning again afterwards."""
        self.seek(0)
        while block := self.read():
            yield block
        self.seek(0)


class SourceFile:
    """A regular file that is open for reading by many threads, and its size at that time."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor = descriptor
        self._path = path
        self.size = os.fstat(descriptor).st_size

    def read_into(self, block: memoryview, start: int) -> int:
        """Read what there is at `start`, at most as long as the block; the bytes that were read.

        Raises BucketError where there is nothing.
        """
        count = os.preadv(self._descriptor, [block], start) if block else 0
        if block and not count:
            raise BucketError(f"{self._path} shrank while it was being stored")
        return count

    def read_whole(self) -> bytes:
        """The content of a small file. Raises BucketError where it has become shorter."""
        return b"".join(map(bytes, FilePart(self, 0, self.size).blocks()))

    def parts(self, part_bytes: int) -> Iterator[FilePart]:
        """The file in parts of equal size, except for a shorter last one."""
        for start in range(0, self.size, part_bytes):
            yield FilePart(self, start, min(part_bytes, self.size - start))


def body_blocks(body: bytes | FilePart) -> Iterable[bytes | memoryview]:
    """The blocks of a request's body."""
    return (body,) if isinstance(body, bytes) else body.blocks()


@contextmanager
def open_source(path: Path) -> Iterator[SourceFile]:
    """Open a regular file to send. Raises OSError, and BucketError for anything else."""
    # Without O_NONBLOCK, opening a pipe would wait for ever.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise BucketError(f"{path} is no regular file: only such files can be stored")
        yield SourceFile(descriptor, path)
    finally:
        os.close(descriptor)
