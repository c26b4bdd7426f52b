"""The parts of a file to send. Each part is read in blocks, and never completely in memory."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from detcloud.shared.bucket_errors import BucketError

# Large enough for few calls per part, and small enough for a processor's cache.
BLOCK_BYTES = 256 * 1024


class FilePart:
    """A part of an open file, with the methods of a file. Only for a single thread at a time.

    The part has `length` bytes from the offset `start` of `source`. Each read overwrites the block
    of the last read. Reading raises BucketError if the file has become shorter. Each part has a
    position and a memory of its own, so several threads may read different parts of a file.
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
        """Read the next block of at most BLOCK_BYTES, and move the position behind the block.

        `size` is ignored, so the block may be larger. The block is only empty at the end. The next
        read overwrites the block. Raise BucketError if the file has become shorter.
        """
        if self._buffer is None:
            self._buffer = memoryview(bytearray(min(BLOCK_BYTES, self._length)))
        block = self._buffer[: self._length - self._position]
        count = self._source.read_into(block, self._start + self._position)
        self._position += count
        return block[:count]

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position in the part, and return the new position.

        `whence` counts from the beginning, the position or the end of the part. The position is not
        checked and must lie within the part. Raise KeyError for another `whence`.
        """
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._length}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        """Return the position, counted from the beginning of the part."""
        return self._position

    def blocks(self) -> Iterator[memoryview]:
        """Yield all blocks of the part, from its beginning and wherever the position was.

        Each block is overwritten by the next. The position is 0 after a full iteration, and stays
        inside the part if the iteration is abandoned or fails. A further call yields all blocks
        again. Raise BucketError if the file has become shorter.
        """
        self.seek(0)
        while block := self.read():
            yield block
        self.seek(0)


class SourceFile:
    """An open regular file with the size at its opening. Several threads may read the file.

    The object has no position and does not close the descriptor. Reading raises OSError if the file
    is unreadable. Bytes that were appended after the opening are ignored.
    """

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor = descriptor
        self._path = path
        self.size = os.fstat(descriptor).st_size

    def read_into(self, block: memoryview, start: int) -> int:
        """Read bytes at the offset `start` into the block, and return the number of bytes read.

        The number may be smaller than the block, and is only 0 for an empty block. Raise
        BucketError if the file ends at or before `start`, unless the block is empty.
        """
        count = os.preadv(self._descriptor, [block], start) if block else 0
        if block and not count:
            raise BucketError(f"{self._path} shrank while it was being stored")
        return count

    def read_whole(self) -> bytes:
        """Return the content, as many bytes as at the opening. b"" for an empty file.

        Raise BucketError if the file has become shorter. The whole content is in memory.
        """
        return b"".join(map(bytes, FilePart(self, 0, self.size).blocks()))

    def parts(self, part_bytes: int) -> Iterator[FilePart]:
        """Yield the parts of the file in order. Only the last may be smaller than `part_bytes`.

        Yield nothing for an empty file. Nothing is read before a part is read, which must happen
        while the file is open.
        """
        for start in range(0, self.size, part_bytes):
            yield FilePart(self, start, min(part_bytes, self.size - start))


def body_blocks(body: bytes | FilePart) -> Iterable[bytes | memoryview]:
    """Return the blocks of a request's body: bytes as a single block, a part as its blocks.

    Empty bytes are an empty block. Blocks of a part are read during the iteration, as
    `FilePart.blocks` does, and each block is overwritten by the next.
    """
    return (body,) if isinstance(body, bytes) else body.blocks()


@contextmanager
def open_source(path: Path) -> Iterator[SourceFile]:
    """Open a regular file for sending, and close the file at the end of the block. Follow links.

    Raise BucketError for a folder or special file, and OSError if the file is missing or cannot be
    opened. A pipe without a writer causes no wait.
    """
    # Without O_NONBLOCK, opening a pipe would wait for ever.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise BucketError(f"{path} is no regular file: only such files can be stored")
        yield SourceFile(descriptor, path)
    finally:
        os.close(descriptor)
