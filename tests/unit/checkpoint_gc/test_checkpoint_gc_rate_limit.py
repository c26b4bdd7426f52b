"""The limit of a collection's deletions, by a clock that only pauses move."""

import itertools
from collections import Counter
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
from control_plane.checkpoint_stores import folder_files
from detcloud.shared.bucket_errors import StoreBusy
from tests.unit.checkpoint_gc.collection_cluster import CollectionCluster, uuid_of


class Clock:
    """Seconds that pass only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Deletions:
    """The files that were deleted from folders, with their times."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.times: list[float] = []
        self.names: list[str] = []
        self.busy_answers = 0
        self._remove = folder_files._remove_file

    def remove(self, name: str, folder: int) -> int:
        if self.busy_answers:
            self.busy_answers -= 1
            raise StoreBusy("503 SlowDown")
        removed = self._remove(name, folder)
        if removed:
            self.times.append(self.clock.now)
            self.names.append(name)
        return removed


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def deletions(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Deletions:
    found = Deletions(clock)
    monkeypatch.setattr(folder_files, "_remove_file", found.remove)
    return found


@pytest.fixture
def cluster(tmp_path: Path) -> CollectionCluster:
    """A search whose six checkpoints are unwanted and have 20 files each and a manifest."""
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
    """The most that happened within any stretch of so many seconds."""
    return max(sum(first <= at <= first + seconds for at in times) for first in times)


@pytest.mark.parametrize("limit", [1, 7, 100, 10_000])
@pytest.mark.parametrize("seed", range(5))
def test_no_second_sees_more_than_the_limit_and_what_was_saved_up(limit: int, seed: int) -> None:
    random, clock = Random(seed), Clock()
    limited = DeletionRateLimiter(lambda: limit, clock, Random(seed))
    times: list[float] = []
    while len(times) < min(300, 3 * limit + 30):
        clock.sleep(limited.pause_seconds())
        # Most steps are quick; some take a while, and some remove nothing.
        clock.sleep(random.choice([0.0, 0.0, 0.0001, 0.05]))
        step = random.choice([ONE_FILE, ONE_FILE, ONE_FILE, NO_FILES])
        times += [clock.now] * step.files
        limited.count_step(step)
    for seconds in (0.5, 1.0, 3.0, 10.0):
        # The bucket holds the tokens of a second, and a limit below 1 is none.
        assert most_in(times, seconds) <= limit * (seconds + 1) + 1e-3


def test_the_limit_is_made_use_of(clock: Clock) -> None:
    limited = limiter(clock, 100)
    began = clock.now
    for _ in range(1000):
        clock.sleep(limited.pause_seconds())
        limited.count_step(ONE_FILE)
    # The first 100 are free, the other 900 take 9 s, and the last pause up to 0.25 s of jitter.
    assert 9.0 - 0.02 <= clock.now - began <= 9.0 + 0.25


def test_a_folder_that_goes_as_a_whole_is_paid_for_afterwards(clock: Clock) -> None:
    limited = limiter(clock, 10)
    limited.count_step(CollectionStep(510))
    # 10 tokens less 510 are -500; 501 come in 50.1 s, and the jitter is at most 0.25 s.
    assert 50.1 <= limited.pause_seconds() <= 50.35


def test_a_changed_limit_is_obeyed_from_the_next_pass_on(clock: Clock) -> None:
    limits = [1000.0]
    limited = DeletionRateLimiter(lambda: limits[-1], clock, Random(7))
    limits.append(2.0)
    limited.refresh_limit()
    limited.count_step(ONE_FILE)
    clock.sleep(10)
    limited.count_step(CollectionStep(2))
    # The two tokens of a second are used up; the next one takes half a second.
    assert 0.5 <= limited.pause_seconds() <= 0.75


def test_a_busy_store_is_asked_more_rarely_and_as_often_again_within_a_minute(clock: Clock) -> None:
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

    # Four halvings leave 64 / 16 = 4 a second, and so much is saved up at most.
    assert seconds_of(12) >= 2.0 - 0.5
    clock.sleep(RECOVERY_SECONDS)
    limited.count_step(ONE_FILE)
    # The whole limit again: 192 take 3 s at most, and the last pause has jitter.
    assert seconds_of(192) <= 3.0 + 0.25


def test_pauses_of_a_busy_store_grow_and_are_drawn(clock: Clock) -> None:
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
def test_a_collection_obeys_the_limit(
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


def test_passes_of_a_loop_obey_it_too(
    cluster: CollectionCluster, clock: Clock, deletions: Deletions
) -> None:
    collector = Collector(cluster.stores, clock, limiter(clock, 10))
    # An embedded cluster's thread passes once a second, and is never held up.
    for _ in range(60):
        before = clock.now
        collector.collect()
        assert clock.now == before
        clock.sleep(1.0)
    assert cluster.kept_checkpoints() == []
    assert most_in(deletions.times, 3.0) <= 10 * (3 + 1)


def test_who_has_little_time_left_stops_and_another_goes_on(
    cluster: CollectionCluster, clock: Clock, deletions: Deletions
) -> None:
    calls = 0
    while cluster.rows(COLLECTIONS):
        calls += 1
        assert calls < 50
        ends = clock.now + 40.0

        def left_ms(ends: float = ends) -> int:
            return int((ends - clock.now) * 1000)

        # A function that was started anew knows nothing of the one before.
        collector = Collector(cluster.stores, clock, limiter(clock, 1))
        collector.collect_while(left_ms, 30_000, clock.sleep)
        assert clock.now <= ends - 30
        clock.sleep(60)
    # Each has 10 s for its files, and one that was saved up.
    assert calls >= FILES / 12
    assert_all_deleted_once(cluster, deletions)


class ProcessKill(BaseException):
    """The end of a process on the spot."""


def test_a_process_that_is_killed_after_each_deletion_loses_nothing(
    cluster: CollectionCluster, clock: Clock, deletions: Deletions, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remove_and_die(name: str, folder: int) -> int:
        removed = deletions.remove(name, folder)
        if removed:
            raise ProcessKill
        return removed

    monkeypatch.setattr(folder_files, "_remove_file", remove_and_die)
    for killed in range(1, FILES + 1):
        collector = Collector(cluster.stores, clock, limiter(clock, 10_000))
        with pytest.raises(ProcessKill):
            collector.collect()
        assert len(deletions.names) == killed
    Collector(cluster.stores, clock, limiter(clock, 10_000)).collect()
    assert_all_deleted_once(cluster, deletions)


def test_a_store_that_is_busy_for_a_while_costs_time_alone(
    cluster: CollectionCluster, clock: Clock, deletions: Deletions, caplog: pytest.LogCaptureFixture
) -> None:
    deletions.busy_answers = BUSY_ANSWERS_MAX
    collector = Collector(cluster.stores, clock, limiter(clock, 1000))
    began = clock.now
    collector.collect_while(lambda: 10**9, 0, clock.sleep)
    assert_all_deleted_once(cluster, deletions)
    # Six halvings leave 1000 / 64 = 15 a second, which a minute makes 1000 again.
    assert clock.now - began >= 2.0
    assert "cannot be collected" not in caplog.text


def test_a_store_that_stays_busy_is_left_alone_for_a_while(
    cluster: CollectionCluster, clock: Clock, deletions: Deletions, caplog: pytest.LogCaptureFixture
) -> None:
    deletions.busy_answers = 10**6
    collector = Collector(cluster.stores, clock, limiter(clock, 1000))
    passes = collector.collect_while(lambda: 10**9, 0, clock.sleep)
    # One checkpoint's folder is asked for BUSY_ANSWERS_MAX times more, and no other one after it.
    assert 10**6 - deletions.busy_answers == BUSY_ANSWERS_MAX + 1
    assert "503 SlowDown" in caplog.text
    assert passes > 0
    deletions.busy_answers = 0
    cluster.now_ms += 60_000
    collector.collect_while(lambda: 10**9, 0, clock.sleep)
    assert_all_deleted_once(cluster, deletions)


def test_a_request_makes_steps_for_as_long_as_it_has_time(clock: Clock) -> None:
    def work() -> Steps:
        yield from [ONE_FILE] * 30

    def run(seconds: float, steps: Steps) -> bool:
        until = clock.now + seconds
        return run_steps(steps, limiter(clock, 2), lambda: until - clock.now, clock.sleep)

    steps = work()
    assert not run(5, steps)
    left = len(list(steps))
    # 2 at once and 2 a second; a pause has up to 0.25 s of jitter, and what it was is saved up.
    assert 30 - 12 <= left <= 30 - 9
    assert run(60, work())


def assert_all_deleted_once(cluster: CollectionCluster, deletions: Deletions) -> None:
    """Everything is deleted and recorded, and no file was deleted twice."""
    assert cluster.kept_checkpoints() == []
    assert set(cluster.checkpoint_states().values()) == {"DELETED"}
    assert cluster.rows(COLLECTIONS) == []
    found = Counter(deletions.names)
    assert found.pop("manifest.json") == 6
    assert len(found) == 6 * 20
    assert set(found.values()) == {1}


def test_the_limit_is_read_once_something_is_to_be_deleted() -> None:
    # Making a limiter is a part of a function's start, where nobody answers yet.
    asked: list[None] = []

    def read_limit() -> float:
        asked.append(None)
        return 5.0

    limiter = DeletionRateLimiter(read_limit, Clock())
    assert asked == []
    limiter.count_step(ONE_FILE)
    assert (limiter.limit, len(asked)) == (5.0, 1)
    # A second's files may go at once: four more.
    for _ in range(4):
        assert limiter.pause_seconds() == 0
        limiter.count_step(ONE_FILE)
    assert limiter.pause_seconds() >= 1 / 5
