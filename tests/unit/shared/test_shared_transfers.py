import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from detcloud.shared import transfers
from detcloud.shared.bucket_errors import BucketError
from detcloud.shared.transfers import (
    call_at_once,
    fetch_parts,
    file_parts,
    part_bytes_of,
    parts_at_once,
)

MB = 1 << 20


@pytest.mark.parametrize(
    ("size", "part", "at_once"),
    [
        (0, 5 * MB, 6),
        # 10,000 parts of 5 MiB are 50,000 MiB; of four times that they have to be of 20.
        (50_000 * MB, 5 * MB, 6),
        (200_000 * MB, 20 * MB, 3),
        # A part of 100 MiB is more than may be in memory, and goes alone.
        (1_000_000 * MB, 100 * MB, 1),
    ],
)
def test_parts_are_as_large_as_needed_and_few_in_memory(size: int, part: int, at_once: int) -> None:
    assert part_bytes_of(size, 10_000) == part
    assert parts_at_once(part) == at_once


def test_no_more_are_at_work_or_waiting_than_may_be() -> None:
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
    # Three at work, and the one that is taken when there is room for it.
    assert most[0] <= 4


def test_after_an_error_nothing_runs_and_it_is_raised() -> None:
    begun: list[int] = []

    def fail_at_five(number: int) -> None:
        begun.append(number)
        if number == 5:
            raise BucketError("five")

    with pytest.raises(BucketError, match="five"):
        call_at_once(fail_at_five, range(1000), 2)
    assert len(begun) < 20


def test_a_file_is_cut_and_put_together(tmp_path: Path) -> None:
    content = bytes(range(250))
    (tmp_path / "source").write_bytes(content)
    parts = [read() for read in file_parts(tmp_path / "source", 250, 100)]
    assert [len(part) for part in parts] == [100, 100, 50]
    fetch_parts(tmp_path / "copy", 250, 100, lambda start, end: iter([content[start:end]]))
    assert (tmp_path / "copy").read_bytes() == content


def test_what_became_shorter_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"x" * 150)
    first, second = file_parts(tmp_path / "source", 200, 100)
    assert len(first()) == 100
    with pytest.raises(BucketError, match="shrank while"):
        second()
    with pytest.raises(BucketError, match="30 of 50 bytes were received at 100"):
        fetch_parts(
            tmp_path / "copy", 150, 100, lambda start, end: iter([b"y" * min(130 - start, 100)])
        )


def test_what_is_in_memory_is_bounded() -> None:
    assert transfers.PART_BYTES * transfers.PARTS_AT_ONCE <= transfers.MEMORY_BYTES_MAX
