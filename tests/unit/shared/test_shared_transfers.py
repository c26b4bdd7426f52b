import hashlib
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from detcloud.shared import azure, s3, transfers
from detcloud.shared.bucket_errors import BucketError
from detcloud.shared.gcs_limits import GCS_LIMITS
from detcloud.shared.s3_limits import S3_LIMITS
from detcloud.shared.transfers import (
    call_at_once,
    fetch_parts,
    file_parts,
    part_bytes_of,
    parts_at_once,
    write_blocks,
)
from tests.patience import PROCESS_SECONDS_MAX

MB = 1 << 20


@pytest.mark.parametrize(
    ("size", "part", "at_once"),
    [
        (0, 5 * MB, 6),
        # 10,000 parts of 5 MiB are 50,000 MiB; 200,000 MiB need parts of 20 MiB.
        (50_000 * MB, 5 * MB, 6),
        (200_000 * MB, 20 * MB, 3),
        # A part of 100 MiB exceeds the memory limit, so that parts are sent singly.
        (1_000_000 * MB, 100 * MB, 1),
    ],
)
def test_parts_are_as_large_as_needed_and_few_in_memory(size: int, part: int, at_once: int) -> None:
    assert part_bytes_of(size, 10_000) == part
    assert parts_at_once(part) == at_once


TB = 1 << 40
# Maximum bytes of an object, allowed parts, maximum parts, minimum and maximum bytes of a part
# other than the last, and bytes of a small file's parts.
SERVICES = [
    pytest.param(5 * TB, s3.PARTS_MAX, 10_000, 5 * MB, 5 << 30, S3_LIMITS.sent_part_bytes, id="s3"),
    # 50,000 blocks of 4,000 MiB exceed the largest file here.
    pytest.param(5 * TB, azure.BLOCKS_MAX, 50_000, 1, 4000 * MB, 5 * MB, id="azure"),
]


@pytest.mark.parametrize(("most", "allowed", "parts_max", "least", "part_max", "first"), SERVICES)
def test_part_sizes_respect_the_limits_of_the_service(
    most: int, allowed: int, parts_max: int, least: int, part_max: int, first: int
) -> None:
    assert allowed <= parts_max

    @settings(deadline=None, derandomize=True, max_examples=60)
    @given(sizes_up_to(most, parts_max))
    @example(most)
    def check(size: int) -> None:
        part = part_bytes_of(size, allowed, first)
        count = max(1, -(-size // part))
        last = size - (count - 1) * part
        assert count <= parts_max
        assert least <= part <= part_max
        assert 0 <= last <= part
        # The parts in memory exceed the limit only if a single part exceeds the limit.
        assert parts_at_once(part) * part <= max(transfers.MEMORY_BYTES_MAX, part)
        if count < 200:
            assert len(list(file_parts(Path("any"), size, part))) == (count if size else 0)

    check()


def sizes_up_to(most: int, parts_max: int) -> st.SearchStrategy[int]:
    """Return a strategy of sizes up to `most`: around multiples of part sizes, and any size."""
    around = st.builds(
        lambda parts, part, off: max(0, min(most, parts * part + off)),
        st.sampled_from([1, 2, parts_max - 1, parts_max, parts_max + 1, 2 * parts_max]),
        st.sampled_from([5 * MB, 5 * MB + 1, 16 * MB, 100 * MB]),
        st.integers(-1, 1),
    )
    return st.one_of(around, st.integers(0, most))


def test_part_size_for_google_is_a_multiple_of_256_kib() -> None:
    # Google requires a multiple of 256 KiB except for the last part, and limits no part count.
    assert GCS_LIMITS.part_bytes % (256 * 1024) == 0


def test_number_of_running_and_waiting_calls_is_limited() -> None:
    taken, ended, most = [0], [0], [0]
    lock = threading.Lock()

    def numbers() -> Iterator[int]:
        for number in range(50):
            with lock:
                taken[0] += 1
                most[0] = max(most[0], taken[0] - ended[0])
            yield number

    def work(number: int) -> int:
        with lock:
            ended[0] += 1
        return number * 2

    assert call_at_once(work, numbers(), 3) == [number * 2 for number in range(50)]
    # Three running calls, and a number that is taken as soon as a call ends.
    assert most[0] <= 4


def test_a_slow_call_does_not_block_other_calls() -> None:
    others_ended = threading.Event()
    ended = iter(range(1, 100))

    def work(number: int) -> None:
        if number == 0:
            assert others_ended.wait(30)
        elif next(ended) == 50:
            others_ended.set()

    call_at_once(work, range(51), 3)


def test_an_error_stops_further_calls_and_is_raised() -> None:
    begun: list[int] = []

    def fail_at_five(number: int) -> None:
        begun.append(number)
        if number == 5:
            raise BucketError("five")

    with pytest.raises(BucketError, match="five"):
        call_at_once(fail_at_five, range(1000), 2)
    assert len(begun) < 20


def test_a_file_is_split_and_reassembled(tmp_path: Path) -> None:
    content = bytes(range(250))
    (tmp_path / "source").write_bytes(content)
    parts = [read() for read in file_parts(tmp_path / "source", 250, 100)]
    assert [len(part) for part in parts] == [100, 100, 50]
    fetch_parts(tmp_path / "copy", 250, 100, lambda start, end: iter([content[start:end]]))
    assert (tmp_path / "copy").read_bytes() == content


@pytest.mark.parametrize("size", [0, 1, 999, 1000, 1001, 23_456])
def test_digest_is_that_of_the_file_in_any_order_of_parts(tmp_path: Path, size: int) -> None:
    chance = random.Random(size)
    content = chance.randbytes(size)
    delays = [chance.random() / 100 for _ in range(size // 1000 + 1)]

    def read(start: int, end: int) -> Iterator[bytes]:
        time.sleep(delays[start // 1000])
        yield content[start : start + 1]
        yield content[start + 1 : end]

    digest = hashlib.sha256()
    fetch_parts(tmp_path / "copy", size, 1000, read, digest)
    assert (tmp_path / "copy").read_bytes() == content
    assert digest.hexdigest() == hashlib.sha256(content).hexdigest()


def test_a_failed_part_ends_a_hashed_transfer(tmp_path: Path) -> None:
    def read(start: int, end: int) -> Iterator[bytes]:
        if start == 2000:
            raise BucketError("gone")
        yield bytes(end - start)

    with pytest.raises(BucketError, match="gone"):
        fetch_parts(tmp_path / "copy", 50_000, 1000, read, hashlib.sha256())


def test_a_file_that_another_program_cuts_is_an_error(tmp_path: Path) -> None:
    class CuttingDigest:
        def update(self, data: bytes | memoryview, /) -> None:
            (tmp_path / "copy").write_bytes(b"")

    # Blocks of a digest have 1 MiB, so the digest needs three reads.
    size = 3 * MB
    with pytest.raises(BucketError, match="was cut while it was fetched"):
        fetch_parts(
            tmp_path / "copy", size, size, lambda start, end: iter([bytes(size)]), CuttingDigest()
        )


def test_written_blocks_are_hashed_and_counted(tmp_path: Path) -> None:
    digest = hashlib.sha256()
    assert write_blocks(tmp_path / "copy", [b"ab", b"", b"c"], digest) == 3
    assert digest.digest() == hashlib.sha256(b"abc").digest()
    assert (tmp_path / "copy").read_bytes() == b"abc"


def test_a_shrunk_file_or_answer_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"x" * 150)
    first, second = file_parts(tmp_path / "source", 200, 100)
    assert len(first()) == 100
    with pytest.raises(BucketError, match="shrank while"):
        second()
    with pytest.raises(BucketError, match="30 of 50 bytes were received at 100"):
        fetch_parts(
            tmp_path / "copy", 150, 100, lambda start, end: iter([b"y" * min(130 - start, 100)])
        )


def test_memory_of_concurrent_parts_is_limited() -> None:
    assert transfers.PART_BYTES * transfers.PARTS_AT_ONCE <= transfers.MEMORY_BYTES_MAX


LEAVER = """
import threading
from detcloud.shared.transfers import call_at_once

may_end, has_begun = threading.Event(), threading.Event()


def wait_for_ever(_):
    has_begun.set()
    may_end.wait()


def send():
    call_at_once(wait_for_ever, range(3), 2)


threading.Thread(target=send, daemon=True).start()
has_begun.wait()
"""


def test_running_transfers_do_not_block_the_process_exit() -> None:
    subprocess.run([sys.executable, "-c", LEAVER], check=True, timeout=PROCESS_SECONDS_MAX)
