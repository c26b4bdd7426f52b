"""The rate limit of a collection: the number of files that may be deleted per second.

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
# The number of consecutive refusals that a removal tolerates; the next refusal fails the removal.
# The collector starts the removal again much later.
BUSY_ANSWERS_MAX = 6
# The fraction of a token by which rounding of the clock's seconds may fall short.
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class CollectionStep:
    """The outcome of a short step of a collection."""

    files: int = 0
    """The number of files that the step removed."""
    is_store_busy: bool = False
    """Whether the store asked for fewer requests."""


NO_FILES = CollectionStep()
ONE_FILE = CollectionStep(1)
STORE_BUSY = CollectionStep(is_store_busy=True)

Steps = Iterator[CollectionStep]
"""Work in short steps, which may be paused or abandoned after each step."""


def default_limit() -> float:
    """Return the limit, in files per second, of a cluster without a limit in its configuration."""
    return DELETIONS_PER_SECOND


class DeletionRateLimiter:
    """The rate limiter of a process's deletions: a token bucket that starts full.

    The limiter never sleeps. The caller reports each step with `count_step`, and waits for
    `pause_seconds` before the next step. Not for concurrent use by several threads.
    """

    def __init__(
        self,
        read_limit: Callable[[], float] = default_limit,
        seconds: Callable[[], float] = time.monotonic,
        random: Random | None = None,
    ) -> None:
        """Create a limiter that reads the limit when the limit is first needed.

        A starting function has nothing to delete yet, and must not read the configuration.

        Args:
            read_limit: returns the number of files per second that the cluster allows.
            seconds: a monotonic clock.
            random: the source of the jitter; None stands for the system's randomness.
        """
        self._read_limit = read_limit
        self._seconds = seconds
        self._random = random or SystemRandom()
        self._limit: float | None = None
        self._share = 1.0
        # The bucket starts full; its size follows from the limit, which is read later.
        self._tokens = math.inf
        self._counted_at = self._due_at = seconds()
        self._busy_answers = 0

    @property
    def limit(self) -> float:
        """The limit in files per second, as read last; the first access reads the limit."""
        if self._limit is None:
            self._limit = self._read_limit()
        return self._limit

    def refresh_limit(self) -> None:
        """Read the limit again, because an admin may have changed the configuration.

        The time until now counts with the earlier limit. Raises every error of `read_limit`.
        """
        if self._limit is not None:
            self._fill()
        self._limit = self._read_limit()

    def count_step(self, step: CollectionStep) -> None:
        """Count the outcome of a step, and update the pause before the next step.

        Each removed file takes a token. Without a token left, the pause lasts until the bucket has
        a token again, plus up to JITTER_SECONDS_MAX. A busy store halves the rate, down to SLOWEST
        of the limit. The pause is then random, at most BUSY_PAUSE_SECONDS_MAX, and at least the
        time of a file at the new rate. The next removed file ends the busy state. Then the rate
        recovers within RECOVERY_SECONDS.
        """
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
        """Return the seconds to wait before the next step; 0 if the step may run now."""
        return max(0.0, self._due_at - self._seconds())

    @property
    def _rate(self) -> float:
        """The current rate in files per second: the limit, reduced while the store is busy."""
        return self.limit * self._share

    @property
    def _tokens_max(self) -> float:
        return max(1.0, self._rate * BURST_SECONDS)

    def _fill(self) -> None:
        """Add the tokens for the time since the last call.

        Unless the store's last answer was busy, also raise a reduced rate. After at most
        RECOVERY_SECONDS, the rate equals the limit again.
        """
        now = self._seconds()
        passed = max(0.0, now - self._counted_at)
        self._counted_at = now
        self._tokens = min(self._tokens_max, self._tokens + passed * self._rate)
        if not self._busy_answers:
            self._share = min(1.0, self._share + passed / RECOVERY_SECONDS)

    def _slow_down(self) -> None:
        """Halve the rate, and extend the pause by a random time.

        The upper bound of the random time doubles with each consecutive busy answer, up to
        BUSY_PAUSE_SECONDS_MAX. The pause lasts at least the time of a file at the new rate.
        """
        self._share = max(SLOWEST, self._share / 2)
        self._tokens = min(self._tokens, self._tokens_max)
        ceiling = BUSY_PAUSE_SECONDS_FIRST * 2 ** min(self._busy_answers, 16)
        self._busy_answers += 1
        pause = self._random.uniform(0, min(BUSY_PAUSE_SECONDS_MAX, ceiling))
        self._due_at = max(self._due_at, self._counted_at + max(pause, 1 / self._rate))


def remove_checkpoint_folder(
    files: CheckpointFiles, parts: tuple[str, ...], *, prune: bool = False
) -> Steps:
    """Remove a folder like `CheckpointFiles.remove_folder`, in steps.

    If the store asks for fewer requests, yield STORE_BUSY and start again in the next step. Raises
    StoreBusy after more than BUSY_ANSWERS_MAX consecutive busy answers. Raises OSError and
    ValueError like `CheckpointFiles.remove_folder`.
    """
    return _resume_when_busy(lambda: files.remove_folder(parts, prune=prune))


def remove_chosen_files(
    files: CheckpointFiles, parts: tuple[str, ...], patterns: tuple[str, ...]
) -> Steps:
    """Remove the files of a checkpoint that match a pattern, except the manifest, in steps.

    Busy answers are handled like in `remove_checkpoint_folder`. Raises OSError if a file cannot be
    removed or the store is missing.
    """

    def remove() -> Iterator[int]:
        for name, _ in files.list_files(parts):
            if name != MANIFEST and matches_any(name, patterns):
                yield files.remove_file(parts, name)
        # A missing store lists no files; this call raises an error for a missing store.
        files.sync_folder(parts)

    return _resume_when_busy(remove)


def _resume_when_busy(remove: Callable[[], Iterator[int]]) -> Steps:
    """Yield the steps of a removal, and call `remove` again after a busy answer of the store.

    `remove` starts the removal and yields the number of removed files after each step. Each busy
    answer yields STORE_BUSY. Raises StoreBusy after more than BUSY_ANSWERS_MAX busy answers without
    a removed file in between. Raises every other error of `remove`.
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
    """Run the steps of `work` at the limited rate while time is left; return whether all were run.

    Sleep for each pause of the limiter. Stop if the next pause would last at least `left_seconds`.
    Raises every error of the work.

    Args:
        left_seconds: returns the remaining time in seconds.
    """
    while left_seconds() > limiter.pause_seconds():
        if pause := limiter.pause_seconds():
            sleep(pause)
        step = next(work, None)
        if step is None:
            return True
        limiter.count_step(step)
    return False
