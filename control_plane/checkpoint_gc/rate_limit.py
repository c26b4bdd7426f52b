"""The rate limit of a collection: how many files it may delete per second.

The limit is a token bucket. Deleting a file takes one token; the bucket fills at the cluster's
limit and holds the tokens of one second, but at least one, so that at most limit * (T + 1) files
are deleted in T seconds. If the store asks for fewer requests, the rate is halved; it recovers
within a minute.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random, SystemRandom

from control_plane.checkpoint_stores.checkpoint_files import CheckpointFiles
from control_plane.config.deletion_limit import DELETIONS_PER_SECOND
from detcloud.shared.bucket_errors import StoreBusy
from detcloud.shared.checkpoint_limits import MANIFEST
from detcloud.shared.file_patterns import matches_any

BURST_SECONDS = 1.0
# Added to each pause, so that the collectors of several clusters do not call a store in lockstep.
JITTER_SECONDS_MAX = 0.25
# The lowest rate, as a share of the limit, however often the store asks for fewer requests.
SLOWEST = 1 / 64
RECOVERY_SECONDS = 60.0
BUSY_PAUSE_SECONDS_FIRST = 1.0
BUSY_PAUSE_SECONDS_MAX = 60.0
# Refusals in a row after which a removal fails; the collector starts it again much later.
BUSY_ANSWERS_MAX = 6
# Tokens that a clock in fractions of a second may be short of.
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class CollectionStep:
    """The outcome of a short step of a collection: the number of files it removed, or that the
    store asked for fewer requests.
    """

    files: int = 0
    is_store_busy: bool = False


NO_FILES = CollectionStep()
ONE_FILE = CollectionStep(1)
STORE_BUSY = CollectionStep(is_store_busy=True)

Steps = Iterator[CollectionStep]
"""Work in short steps, which may be paused or abandoned after any of them."""


def default_limit() -> float:
    """The limit of a cluster whose configuration sets none."""
    return DELETIONS_PER_SECOND


class DeletionRateLimiter:
    """The rate limiter of one process's deletions.

    `read_limit` reads how many files per second the cluster allows; it is called when the limit is
    first needed, because a function that starts has nothing to delete yet. `seconds` is a monotonic
    clock.
    """

    def __init__(
        self,
        read_limit: Callable[[], float] = default_limit,
        seconds: Callable[[], float] = time.monotonic,
        random: Random | None = None,
    ) -> None:
        self._read_limit = read_limit
        self._seconds = seconds
        self._random = random or SystemRandom()
        self._limit: float | None = None
        self._share = 1.0
        # As many as there may be, which the limit says.
        self._tokens = math.inf
        self._counted_at = self._due_at = seconds()
        self._busy_answers = 0

    @property
    def limit(self) -> float:
        """The limit in files per second, as read last."""
        if self._limit is None:
            self._limit = self._read_limit()
        return self._limit

    def refresh_limit(self) -> None:
        """Read the limit again, since an admin may have changed it."""
        if self._limit is not None:
            self._fill()
        self._limit = self._read_limit()

    def count_step(self, step: CollectionStep) -> None:
        """Count the outcome of a step, on which `pause_seconds` depends."""
        self._fill()
        if step.is_store_busy:
            self._slow_down()
        elif step.files:
            self._busy_answers = 0
            self._tokens -= step.files
            if self._tokens < 1 - _ROUNDING:
                jitter = self._random.uniform(0, JITTER_SECONDS_MAX)
                self._due_at = self._counted_at + (1 - self._tokens) / self._rate + jitter

    def pause_seconds(self) -> float:
        """Seconds to wait before the next step; 0 if it may run now."""
        return max(0.0, self._due_at - self._seconds())

    @property
    def _rate(self) -> float:
        return self.limit * self._share

    @property
    def _tokens_max(self) -> float:
        return max(1.0, self._rate * BURST_SECONDS)

    def _fill(self) -> None:
        now = self._seconds()
        passed = max(0.0, now - self._counted_at)
        self._counted_at = now
        self._tokens = min(self._tokens_max, self._tokens + passed * self._rate)
        if not self._busy_answers:
            self._share = min(1.0, self._share + passed / RECOVERY_SECONDS)

    def _slow_down(self) -> None:
        """Halve the rate, and pause with full jitter."""
        self._share = max(SLOWEST, self._share / 2)
        self._tokens = min(self._tokens, self._tokens_max)
        ceiling = BUSY_PAUSE_SECONDS_FIRST * 2 ** min(self._busy_answers, 16)
        self._busy_answers += 1
        pause = self._random.uniform(0, min(BUSY_PAUSE_SECONDS_MAX, ceiling))
        self._due_at = max(self._due_at, self._counted_at + max(pause, 1 / self._rate))


def remove_checkpoint_folder(
    files: CheckpointFiles, parts: tuple[str, ...], *, prune: bool = False
) -> Steps:
    """Remove a folder as `CheckpointFiles.remove_folder` does, resuming when the store was busy.

    Raises OSError.
    """
    return _resume_when_busy(lambda: files.remove_folder(parts, prune=prune))


def remove_chosen_files(
    files: CheckpointFiles, parts: tuple[str, ...], patterns: tuple[str, ...]
) -> Steps:
    """Remove the files of a checkpoint that the patterns choose, but not its manifest, resuming
    when the store was busy. Raises OSError.
    """

    def remove() -> Iterator[int]:
        for name, _ in files.list_files(parts):
            if name != MANIFEST and matches_any(name, patterns):
                yield files.remove_file(parts, name)
        # An error where the store itself is not there, in which nothing was found.
        files.sync_folder(parts)

    return _resume_when_busy(remove)


def _resume_when_busy(remove: Callable[[], Iterator[int]]) -> Steps:
    """Make the steps of a removal, which yields how many files each removed, and begin it again
    when the store was busy. Raises StoreBusy after BUSY_ANSWERS_MAX such answers in a row.
    """
    busy_answers = 0
    while True:
        try:
            for removed in remove():
                busy_answers = 0 if removed else busy_answers
                yield CollectionStep(removed)
            return
        except StoreBusy:
            busy_answers += 1
            if busy_answers > BUSY_ANSWERS_MAX:
                raise
        yield STORE_BUSY


def run_steps(
    work: Steps,
    limiter: DeletionRateLimiter,
    left_seconds: Callable[[], float],
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Run the steps of `work` at the limited rate while time is left; returns whether all were run.

    Raises what the work raises.
    """
    while left_seconds() > limiter.pause_seconds():
        if pause := limiter.pause_seconds():
            sleep(pause)
        step = next(work, None)
        if step is None:
            return True
        limiter.count_step(step)
    return False
