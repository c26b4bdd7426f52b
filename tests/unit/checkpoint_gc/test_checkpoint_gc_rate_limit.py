"""The rate limit of deletions, with a clock that only pauses advance."""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random

import pytest

from control_plane.actors.collection_rows import COLLECTIONS
from control_plane.checkpoint_gc.collector import Collector
from control_plane.checkpoint_gc.rate_limit import (
    BUSY_ANSWERS_MAX,
    NO_FILES,
    ONE_FILE,
    RECOVERY_SECONDS,
    STORE_BUSY,
    CollectionStep,
    DeletionRateLimiter,
    Steps,
    run_steps,
)
from control_plane.checkpoint_stores.folder_files import FolderFiles
from detcloud.shared.bucket_errors import StoreBusy
from tests.unit.checkpoint_gc.collection_cluster import CollectionCluster, uuid_of


class Clock:
    """A clock in seconds that only `sleep` advances."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class ProcessKill(BaseException):
    """The immediate end of a process."""


class Deletions:
    """A record of deleted files with the times of deletion.

    The store answers `busy_answers` requests as busy. With `is_deadly`, a deletion ends the
    process.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.times: list[float] = []
        self.names: list[str] = []
        self.busy_answers = 0
        self.is_deadly = False

    def answer(self) -> None:
        if self.busy_answers:
            self.busy_answers -= 1
            raise StoreBusy("503 SlowDown")

    def record(self, names: Iterable[str]) -> None:
        for name in names:
            self.times.append(self.clock.now)
            self.names.append(name)
            if self.is_deadly:
                raise ProcessKill


class RecordedFiles(FolderFiles):
    """The files below a folder, with a record of deletions."""

    def __init__(self, root: Path, deletions: Deletions) -> None:
        super().__init__(root)
        self._deletions = deletions

    def remove_folder(self, parts: tuple[str, ...], *, prune: bool = False) -> Iterator[int]:
        steps = super().remove_folder(parts, prune=prune)
        names = {name for name, _ in self.list_files(parts)}
        while True:
            self._deletions.answer()
            count = next(steps, None)
            if count is None:
                return
            left = {name for name, _ in self.list_files(parts)}
            assert len(names - left) == count
            self._deletions.record(names - left)
            names = left
            yield count

    def remove_file(self, parts: tuple[str, ...], name: str) -> int:
        self._deletions.answer()
        count = super().remove_file(parts, name)
        self._deletions.record([name] * count)
        return count


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def deletions(clock: Clock, cluster: CollectionCluster) -> Deletions:
    recorded = Deletions(clock)
    cluster.replace_files(RecordedFiles(cluster.root, recorded))
    return recorded


@pytest.fixture
def cluster(tmp_path: Path) -> CollectionCluster:
    """A cluster with six unwanted checkpoints of 20 files and a manifest each."""
    cluster = CollectionCluster.after_search(tmp_path)
    for trial_id, steps in itertools.product(cluster.trials, (10, 20, 30)):
        for number in range(20):
            cluster.write(f"1/{trial_id}/1/{uuid_of(trial_id, steps)}/{trial_id}.{steps}.{number}")
    cluster.request_retention(0, 0, 0)
    return cluster


FILES = 6 * 21


def limiter(clock: Clock, limit: float) -> DeletionRateLimiter:
    return DeletionRateLimiter(lambda: limit, clock, Random(7))


def most_in(times: list[float], seconds: float) -> int:
    """Return the largest number of times within any period of `seconds`."""
    return max(sum(first <= at <= first + seconds for at in times) for first in times)


@pytest.mark.parametrize("limit", [1, 7, 100, 10_000])
@pytest.mark.parametrize("seed", range(5))
def test_deletions_stay_below_limit_and_saved_tokens(limit: int, seed: int) -> None:
    random, clock = Random(seed), Clock()
    limited = DeletionRateLimiter(lambda: limit, clock, Random(seed))
    times: list[float] = []
    while len(times) < min(300, 3 * limit + 30):
        clock.sleep(limited.pause_seconds())
        # Most steps are quick; some take 50 ms, and some remove no file.
        clock.sleep(random.choice([0.0, 0.0, 0.0001, 0.05]))
        step = random.choice([ONE_FILE, ONE_FILE, ONE_FILE, NO_FILES])
        times += [clock.now] * step.files
        limited.count_step(step)
    for seconds in (0.5, 1.0, 3.0, 10.0):
        # The bucket has the tokens of a second.
        assert most_in(times, seconds) <= limit * (seconds + 1) + 1e-3


def test_deletions_use_up_the_limit(clock: Clock) -> None:
    limited = limiter(clock, 100)
    began = clock.now
    for _ in range(1000):
        clock.sleep(limited.pause_seconds())
        limited.count_step(ONE_FILE)
    # The first 100 are free, the next 900 take 9 s, and the last pause has up to 0.25 s of jitter.
    assert 9.0 - 0.02 <= clock.now - began <= 9.0 + 0.25


def test_large_step_is_followed_by_a_long_pause(clock: Clock) -> None:
    limited = limiter(clock, 10)
    limited.count_step(CollectionStep(510))
    # 10 tokens less 510 are -500; 501 tokens take 50.1 s, and the jitter is at most 0.25 s.
    assert 50.1 <= limited.pause_seconds() <= 50.35


def test_changed_limit_applies_after_a_refresh(clock: Clock) -> None:
    limits = [1000.0]
    limited = DeletionRateLimiter(lambda: limits[-1], clock, Random(7))
    limits.append(2.0)
    limited.refresh_limit()
    limited.count_step(ONE_FILE)
    clock.sleep(10)
    limited.count_step(CollectionStep(2))
    # The two tokens of a second are used up; the next token takes half a second.
    assert 0.5 <= limited.pause_seconds() <= 0.75


def test_limit_is_halved_by_a_busy_store_and_recovers(clock: Clock) -> None:
    limited = limiter(clock, 64)
    for _ in range(4):
        clock.sleep(limited.pause_seconds())
        limited.count_step(STORE_BUSY)
    clock.sleep(limited.pause_seconds())

    def seconds_of(count: int) -> float:
        began = clock.now
        for _ in range(count):
            limited.count_step(ONE_FILE)
            clock.sleep(limited.pause_seconds())
        return clock.now - began

    # Four halvings leave 64 / 16 = 4 a second, and at most 4 tokens are saved.
    assert seconds_of(12) >= 2.0 - 0.5
    clock.sleep(RECOVERY_SECONDS)
    limited.count_step(ONE_FILE)
    # The full limit again: 192 take at most 3 s, and the last pause has jitter.
    assert seconds_of(192) <= 3.0 + 0.25


def test_pauses_of_a_busy_store_grow_with_full_jitter(clock: Clock) -> None:
    longest = [0.0] * 4
    for seed in range(100):
        limited = DeletionRateLimiter(lambda: 10_000, clock, Random(seed))
        for number in range(4):
            limited.count_step(STORE_BUSY)
            pause = limited.pause_seconds()
            # Full jitter: up to 1, 2, 4 and 8 s.
            assert 0 < pause <= 2**number
            longest[number] = max(longest[number], pause)
            clock.sleep(pause)
    assert all(most > 0.9 * 2**number for number, most in enumerate(longest))


@pytest.mark.parametrize("limit", [5, 40])
def test_collection_obeys_the_limit(
    cluster: CollectionCluster, clock: Clock, deletions: Deletions, limit: int
) -> None:
    collector = Collector(cluster.stores, clock, limiter(clock, limit))
    began = clock.now
    collector.collect_while(lambda: 10**9, 0, clock.sleep)
    assert cluster.kept_checkpoints() == []
    assert len(deletions.times) == FILES
    for seconds in (0.5, 1.0, 5.0):
        assert most_in(deletions.times, seconds) <= limit * (seconds + 1) + 1e-3
    assert clock.now - began <= FILES / limit + 1


def test_passes_of_a_loop_obey_the_limit(
    cluster: CollectionCluster, clock: Clock, deletions: Deletions
) -> None:
    collector = Collector(cluster.stores, clock, limiter(clock, 10))
    # An embedded cluster's thread runs a pass each second, and a pass never sleeps.
    for _ in range(60):
        before = clock.now
        collector.collect()
        assert clock.now == before
        clock.sleep(1.0)
    assert cluster.kept_checkpoints() == []
    assert most_in(deletions.times, 3.0) <= 10 * (3 + 1)


def test_function_stops_before_timeout_and_the_next_call_continues(
    cluster: CollectionCluster, clock: Clock, deletions: Deletions
) -> None:
    calls = 0
    while cluster.rows(COLLECTIONS):
        calls += 1
        assert calls < 50
        ends = clock.now + 40.0

        def left_ms(ends: float = ends) -> int:
            return int((ends - clock.now) * 1000)

        # A new invocation of a function has no state of the previous invocation.
        collector = Collector(cluster.stores, clock, limiter(clock, 1))
        collector.collect_while(left_ms, 30_000, clock.sleep)
        assert clock.now <= ends - 30
        clock.sleep(60)
    # Each call has 10 s for deletions, and a saved token.
    assert calls >= FILES / 12
    assert_all_deleted_once(cluster, deletions)


def test_kill_after_each_deletion_causes_no_repeated_deletion(
    cluster: CollectionCluster, clock: Clock, deletions: Deletions
) -> None:
    deletions.is_deadly = True
    for killed in range(1, FILES + 1):
        collector = Collector(cluster.stores, clock, limiter(clock, 10_000))
        with pytest.raises(ProcessKill):
            collector.collect()
        assert len(deletions.names) == killed
    deletions.is_deadly = False
    Collector(cluster.stores, clock, limiter(clock, 10_000)).collect()
    assert_all_deleted_once(cluster, deletions)


def test_briefly_busy_store_only_delays_the_collection(
    cluster: CollectionCluster, clock: Clock, deletions: Deletions, caplog: pytest.LogCaptureFixture
) -> None:
    deletions.busy_answers = BUSY_ANSWERS_MAX
    collector = Collector(cluster.stores, clock, limiter(clock, 1000))
    began = clock.now
    collector.collect_while(lambda: 10**9, 0, clock.sleep)
    assert_all_deleted_once(cluster, deletions)
    # Six halvings leave 1000 / 64 = 15 a second; the limit recovers within a minute.
    assert clock.now - began >= 2.0
    assert "cannot be collected" not in caplog.text


def test_permanently_busy_store_is_retried_later(
    cluster: CollectionCluster, clock: Clock, deletions: Deletions, caplog: pytest.LogCaptureFixture
) -> None:
    deletions.busy_answers = 10**6
    collector = Collector(cluster.stores, clock, limiter(clock, 1000))
    passes = collector.collect_while(lambda: 10**9, 0, clock.sleep)
    # The first folder is tried BUSY_ANSWERS_MAX more times; no other folder is tried.
    assert 10**6 - deletions.busy_answers == BUSY_ANSWERS_MAX + 1
    assert "503 SlowDown" in caplog.text
    assert passes > 0
    deletions.busy_answers = 0
    cluster.now_ms += 60_000
    collector.collect_while(lambda: 10**9, 0, clock.sleep)
    assert_all_deleted_once(cluster, deletions)


def test_steps_of_a_request_end_with_the_time_limit(clock: Clock) -> None:
    def work() -> Steps:
        yield from [ONE_FILE] * 30

    def run(seconds: float, steps: Steps) -> bool:
        until = clock.now + seconds
        return run_steps(steps, limiter(clock, 2), lambda: until - clock.now, clock.sleep)

    steps = work()
    assert not run(5, steps)
    left = len(list(steps))
    # 2 at once and 2 a second; a pause has up to 0.25 s of jitter, which is saved as tokens.
    assert 30 - 12 <= left <= 30 - 9
    assert run(60, work())


def assert_all_deleted_once(cluster: CollectionCluster, deletions: Deletions) -> None:
    """Check that all checkpoints are recorded as deleted and that no file was deleted twice."""
    assert cluster.kept_checkpoints() == []
    assert set(cluster.checkpoint_states().values()) == {"DELETED"}
    assert cluster.rows(COLLECTIONS) == []
    counts = Counter(deletions.names)
    assert counts.pop("manifest.json") == 6
    assert len(counts) == 6 * 20
    assert set(counts.values()) == {1}


def test_limit_is_read_at_the_first_deletion() -> None:
    # A limiter is created at a function's start, when the table may not be readable yet.
    reads: list[None] = []

    def read_limit() -> float:
        reads.append(None)
        return 5.0

    limiter = DeletionRateLimiter(read_limit, Clock())
    assert reads == []
    limiter.count_step(ONE_FILE)
    assert (limiter.limit, len(reads)) == (5.0, 1)
    # The tokens of a second allow four more files at once.
    for _ in range(4):
        assert limiter.pause_seconds() == 0
        limiter.count_step(ONE_FILE)
    assert limiter.pause_seconds() >= 1 / 5
