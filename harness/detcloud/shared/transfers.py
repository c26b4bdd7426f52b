"""Transfers of large files in parts, several at a time, with bounded memory.

PARTS_AT_ONCE parts of a file are in memory, 30 MB in all, and half of that again as freed memory.
If a file needs such large parts that they would exceed 64 MB, fewer are transferred at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from contextlib import closing
from functools import partial
from pathlib import Path
from threading import Event, Semaphore, Thread
from typing import TypeVar

from detcloud.shared.bucket_errors import BucketError

PART_BYTES = 5 << 20
PARTS_AT_ONCE = 6
# Of what is fetched, a block of each part is in memory.
FETCHED_BYTES = 16 << 20
FETCHED_AT_ONCE = 10
MEMORY_BYTES_MAX = 64 << 20
Item = TypeVar("Item")
Result = TypeVar("Result")


def part_bytes_of(size: int, parts_max: int, least: int | None = None) -> int:
    """The part size with which a file of `size` bytes does not exceed the maximum number of parts;
    PART_BYTES or `least` for a small file.
    """
    return max(PART_BYTES if least is None else least, -(-size // parts_max))


def parts_at_once(part_bytes: int) -> int:
    """How many parts may be in memory."""
    return max(1, min(PARTS_AT_ONCE, MEMORY_BYTES_MAX // part_bytes))


def file_parts(source: Path, size: int, part_bytes: int) -> Iterator[Callable[[], bytes]]:
    """For each part of a file, what reads it; a reader raises BucketError where it was cut."""
    for start in range(0, size, part_bytes):
        yield partial(_read_part, source, start, min(part_bytes, size - start))


def split_parts(content: Iterable[bytes], part_bytes: int) -> Iterator[bytes]:
    """The content in parts of equal size, except for a shorter last one."""
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
    """Call the function for all items, a limited number at a time, and return the results in order.

    An item is taken when there is room for it, whichever call made room. After an error no item is
    taken, and when the calls that run have ended the first error in the items' order is raised.

    The threads of the calls are daemons, unlike those of an executor, so that a process may end
    within a call: a trial whose machine ends does not wait for the parts of an upload that it left.
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
    destination: Path, size: int, part_bytes: int, read: Callable[[int, int], Iterator[bytes]]
) -> None:
    """Write a file of `size` bytes with what `read` yields from one place to before another, in
    several parts at once.
    """

    def copy(start: int) -> None:
        end = min(start + part_bytes, size)
        with destination.open("r+b") as file:
            file.seek(start)
            file.writelines(read(start, end))
            if file.tell() != end:
                raise BucketError(
                    f"{file.tell() - start} of {end - start} bytes were received at {start}"
                )

    destination.write_bytes(b"")
    call_at_once(copy, range(0, size, part_bytes), FETCHED_AT_ONCE)


def _read_part(source: Path, start: int, length: int) -> bytes:
    with closing(source.open("rb", buffering=0)) as file:
        file.seek(start)
        part = file.read(length)
        while len(part) < length and (more := file.read(length - len(part))):
            part += more
    if len(part) < length:
        raise BucketError(f"{source} shrank while it was being stored")
    return part
