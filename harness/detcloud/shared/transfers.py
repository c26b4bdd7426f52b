"""Large files in parts, several of which are on their way at once and few are in memory.

What is in memory of a file is PARTS_AT_ONCE parts, 30 MB in all, and half of that once more in
what was freed; of a file that needs parts so large that there would be more than 64 MB, there are
fewer at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from functools import partial
from pathlib import Path
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
    """The size of parts of which a file of `size` bytes has no more than there may be; PART_BYTES
    or `least` of a small file.
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
    """The content cut into parts, of which only the last is shorter."""
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
    """The function's results in the order of the items, of which so many are worked on at once.

    An item is taken when there is room for it. After an error no call runs, and it is raised.
    """
    called: list[Future[Result]] = []
    running: set[Future[Result]] = set()
    with ThreadPoolExecutor(at_once) as pool:
        for item in items:
            if len(running) == at_once:
                # Whichever it is: the oldest may be the slowest.
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for it in done:
                    it.result()
            called.append(pool.submit(function, item))
            running.add(called[-1])
    return [it.result() for it in called]


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
