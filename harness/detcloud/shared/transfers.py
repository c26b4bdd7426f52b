"""Transfers of large files in parts, several at a time, with limited memory.

PARTS_AT_ONCE parts of a file are in memory, 30 MB in total, plus half as much freed memory. If
larger parts would exceed 64 MB, fewer parts are transferred at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from contextlib import closing
from functools import partial
from pathlib import Path
from threading import Event, Lock, Semaphore, Thread
from typing import Protocol, TypeVar

from detcloud.shared.bucket_errors import BucketError

PART_BYTES = 5 << 20
PARTS_AT_ONCE = 6
# Of each fetched part, only a block is in memory.
FETCHED_BYTES = 16 << 20
FETCHED_AT_ONCE = 10
MEMORY_BYTES_MAX = 64 << 20
# Large enough for few calls, and small enough for a processor's cache.
_HASHED_BYTES = 1 << 20
Item = TypeVar("Item")
Result = TypeVar("Result")


class Digest(Protocol):
    """A digest that is computed piece by piece, such as `hashlib.sha256()`."""

    def update(self, data: bytes | memoryview, /) -> None: ...


def part_bytes_of(size: int, parts_max: int, least: int = PART_BYTES) -> int:
    """Return the smallest part size for which `size` bytes need at most `parts_max` parts.

    Return at least `least`, also for a smaller file.
    """
    return max(least, -(-size // parts_max))


def parts_at_once(part_bytes: int) -> int:
    """Return the number of parts of this size that may be in memory at a time.

    The number is between 1 and PARTS_AT_ONCE.
    """
    return max(1, min(PARTS_AT_ONCE, MEMORY_BYTES_MAX // part_bytes))


def file_parts(source: Path, size: int, part_bytes: int) -> Iterator[Callable[[], bytes]]:
    """Yield a function for each part of a file, in order, that reads and returns the part.

    `size` is the file's size in bytes. Only the last part may be smaller than `part_bytes`. Yield
    nothing for an empty file. Each call opens the file by itself, so the functions may be called in
    any order, repeatedly and by several threads. A function raises BucketError if the file ends
    within or before the part now, and OSError if the file cannot be opened. Bytes behind `size` are
    ignored.
    """
    for start in range(0, size, part_bytes):
        yield partial(_read_part, source, start, min(part_bytes, size - start))


def split_parts(content: Iterable[bytes], part_bytes: int) -> Iterator[bytes]:
    """Yield the content in parts of `part_bytes`. Only the last part may be smaller.

    Each part is yielded before the next block is read. Yield nothing for empty content. Errors of
    `content` are passed on, and lose the part that was not full.
    """
    part = bytearray()
    for block in content:
        remaining = memoryview(block)
        while remaining:
            room = part_bytes - len(part)
            part += remaining[:room]
            remaining = remaining[room:]
            if len(part) == part_bytes:
                yield bytes(part)
                part.clear()
    if part:
        yield bytes(part)


def call_at_once(
    function: Callable[[Item], Result], items: Iterable[Item], at_once: int
) -> list[Result]:
    """Call the function for all items, at most `at_once` at a time. Return the results in order.

    Each call has a thread. The caller's thread reads the items, one item ahead of the running
    calls. After an error of a call, no further item is read, and the item that was read ahead may
    be dropped without a call. Once the running calls have ended, raise the first error in the
    items' order. If reading the items fails, wait for the running calls and raise that error.
    Without items, return an empty list. `at_once` of 0 blocks for ever.

    The threads are daemons, unlike threads of an executor. A process can therefore end during a
    call, for example a trial on an ending machine during an upload.
    """
    room, has_failed = Semaphore(at_once), Event()

    def run(call: Future[Result], item: Item) -> None:
        try:
            call.set_result(function(item))
        except BaseException as error:
            call.set_exception(error)
            has_failed.set()
        room.release()

    calls: list[Future[Result]] = []
    try:
        for item in items:
            room.acquire()
            if has_failed.is_set():
                break
            calls.append(Future())
            Thread(target=run, args=(calls[-1], item), daemon=True).start()
    finally:
        wait(calls)
    return [call.result() for call in calls]


def fetch_parts(
    destination: Path,
    size: int,
    part_bytes: int,
    read: Callable[[int, int], Iterator[bytes]],
    digest: Digest | None = None,
) -> None:
    """Write a file of `size` bytes, with up to FETCHED_AT_ONCE parts at a time.

    `read(start, end)` yields the bytes from `start` to before `end`, and is called once for each
    part, in several threads. Nothing is repeated here. An existing file is emptied first, also
    behind a link. Without bytes, create an empty file. Raise BucketError if a part has too few or
    too many bytes. Errors of `read` and of the file are passed on. After an error, no further part
    is begun, and the file is incomplete.

    Update `digest` with the bytes of the file, in the file's order, while further parts arrive.
    """
    hashing = None if digest is None else _OrderedHashing(destination, digest)

    def copy(start: int) -> None:
        end = min(start + part_bytes, size)
        with destination.open("r+b") as file:
            file.seek(start)
            file.writelines(read(start, end))
            if file.tell() != end:
                raise BucketError(
                    f"{file.tell() - start} of {end - start} bytes were received at {start}"
                )
        if hashing is not None:
            hashing.add_part(start, end)

    destination.write_bytes(b"")
    call_at_once(copy, range(0, size, part_bytes), FETCHED_AT_ONCE)


def write_blocks(destination: Path, blocks: Iterable[bytes], digest: Digest | None) -> int:
    """Write the blocks to a file, update `digest` with the blocks, and return the bytes in total.

    Replace an existing file. Errors of `blocks` and of the file are passed on; the file then has
    the earlier blocks.
    """
    with destination.open("wb") as file:
        for block in blocks:
            file.write(block)
            if digest is not None:
                digest.update(block)
        return file.tell()


def hash_file(path: Path, digest: Digest | None) -> int:
    """Update `digest`, if any, with the content of a file, and return the file's bytes.

    Raise OSError if the file cannot be read.
    """
    size = path.stat().st_size
    if digest is not None:
        _OrderedHashing(path, digest).add_part(0, size)
    return size


class _OrderedHashing:
    """The hashing of a file whose parts arrive in any order. Thread-safe.

    The bytes are read from the file, and not kept from the transfer: the digest is that of the
    written file, and waiting parts need no memory. The system usually still has the bytes in its
    page cache.
    """

    def __init__(self, path: Path, digest: Digest) -> None:
        self._path = path
        self._digest = digest
        self._lock = Lock()
        self._ends: dict[int, int] = {}
        self._position = 0
        self._is_hashing = False

    def add_part(self, start: int, end: int) -> None:
        """Note that the file has the bytes from `start` to before `end`, each byte once.

        Then hash all bytes that follow the hashed bytes without a gap, unless another thread does.
        Once all parts were added and all calls have returned, the whole file is hashed. Raise
        OSError if the file cannot be read.
        """
        with self._lock:
            self._ends[start] = end
            if self._is_hashing:
                return
            self._is_hashing = True
        while (following := self._take_following()) is not None:
            self._hash_until(following)

    def _take_following(self) -> int | None:
        """Return the end of the part that follows the hashed bytes. Without such a part, return
        None, and let another thread hash later parts.
        """
        with self._lock:
            end = self._ends.pop(self._position, None)
            self._is_hashing = end is not None
            return end

    def _hash_until(self, end: int) -> None:
        block = memoryview(bytearray(min(_HASHED_BYTES, end - self._position)))
        with self._path.open("rb", buffering=0) as file:
            file.seek(self._position)
            while self._position < end:
                count = file.readinto(block[: end - self._position])
                if not count:
                    raise BucketError(f"{self._path} was cut while it was fetched")
                self._digest.update(block[:count])
                self._position += count


def _read_part(source: Path, start: int, length: int) -> bytes:
    with closing(source.open("rb", buffering=0)) as file:
        file.seek(start)
        part = file.read(length)
        while len(part) < length and (more := file.read(length - len(part))):
            part += more
    if len(part) < length:
        raise BucketError(f"{source} shrank while it was being stored")
    return part
