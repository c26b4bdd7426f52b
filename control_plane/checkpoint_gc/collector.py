"""The collector: a part of the tick that works off the rows of `collections` in short passes.

A row is either an experiment's request or a checkpoint marked for deletion. The work for an
experiment is kept in memory between passes; if it is lost, it starts again and skips what is done.
Two concurrent collectors repeat work but do no harm. All jobs of a collector share its rate limiter
(rate_limit.py).
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from control_plane.actors import addresses
from control_plane.actors.collection_rows import COLLECTIONS, REMOVALS, removal_sort_key
from control_plane.actors.experiment.state import ExperimentState
from control_plane.actors.step import CommandRefused
from control_plane.checkpoint_gc.collection_request import (
    CollectionRequest,
    decode_request,
    execute_request,
    report_end,
)
from control_plane.checkpoint_gc.package_archives import SWEEP_SECONDS, sweep_package_archives
from control_plane.checkpoint_gc.rate_limit import DeletionRateLimiter, Steps
from control_plane.checkpoint_gc.removal import remove_marked_files
from control_plane.checkpoint_gc.stores import CollectionFailed, Stores
from control_plane.state.table import Conflict, Row, StateTable, TableError

log = logging.getLogger(__name__)

BUDGET_SECONDS = 0.5
# The tries of an experiment's deletion before its failure is reported to the experiment. Other
# collections are tried forever.
TRIES_MAX = 5
PAUSE_MS_FIRST = 2_000
PAUSE_MS_MAX = 300_000
ROWS_READ = 100

_LAST = "~"


@dataclass
class _CollectionJob:
    """The work for an experiment."""

    experiment_id: int
    request: CollectionRequest | None
    """The request; None if only marked checkpoints must be removed."""
    work: Steps | None = None
    """The remaining steps; None before the start and after a failure."""
    tries: int = 0
    """The number of failed tries."""
    due_ms: int = 0
    """The time of the next try in epoch ms; 0 for now."""


class Collector:
    """The executor of collection requests and of the daily sweep of package archives.

    Not for concurrent use by several threads.
    """

    def __init__(
        self,
        stores: Stores,
        seconds: Callable[[], float] = time.monotonic,
        limiter: DeletionRateLimiter | None = None,
    ) -> None:
        """Create a collector without jobs.

        Args:
            stores: the stores of the cluster.
            seconds: a monotonic clock, which must be the clock of `limiter`.
            limiter: the rate limiter; None stands for a new limiter with the default limit.
        """
        self._stores = stores
        self._seconds = seconds
        self._limiter = limiter or DeletionRateLimiter(seconds=seconds)
        self._jobs: dict[int, _CollectionJob] = {}
        self._sweep: Steps | None = None
        self._sweep_at = seconds()

    @property
    def pause_seconds(self) -> float:
        """The seconds until the rate limit allows the next pass; 0 if a pass may run now."""
        return self._limiter.pause_seconds()

    def collect_while(
        self,
        left_ms: Callable[[], int],
        reserve_ms: int,
        sleep: Callable[[float], None] = time.sleep,
    ) -> int:
        """Run passes while work is due, and sleep between passes as the rate limiter requires.

        Stop when the next pass would start with `reserve_ms` or less left. Return the number of
        passes. Raises TableError like `collect`.

        Args:
            left_ms: returns the remaining time in ms.
            reserve_ms: the time in ms that must remain for the caller.
            sleep: sleeps for the given number of seconds.
        """
        passes = 0
        while left_ms() - self.pause_seconds * 1000 > reserve_ms:
            sleep(self.pause_seconds)
            if not self.collect():
                break
            passes += 1
        return passes

    def collect(self, budget_seconds: float = BUDGET_SECONDS) -> bool:
        """Run a pass of about `budget_seconds` over the due jobs; return whether any job was due.

        Without pending collections, do nothing and return False. A pass runs at least one step of
        the first due job, unless the rate limiter requires a pause. If time is left, the pass also
        continues the daily sweep of package archives. A failed job is logged and tried again later;
        a deletion that fails TRIES_MAX times is reported to its experiment.

        Raises:
            TableError: the pending requests cannot be read, or a failure cannot be reported. The
                next pass continues.
        """
        if not self._refresh_jobs():
            return False
        self._limiter.refresh_limit()
        until = self._seconds() + budget_seconds
        now_ms = self._stores.engine.clock()
        # A job due later than the longest pause was scheduled by a clock that was ahead.
        due = [job for job in self._jobs.values() if not 0 < job.due_ms - now_ms <= PAUSE_MS_MAX]
        if due and self.pause_seconds:
            return True
        for job in due:
            # The job moves to the end, so that the next pass begins with jobs not reached here.
            self._jobs[job.experiment_id] = self._jobs.pop(job.experiment_id)
            self._advance_job(job, until)
            if self._must_pause(until):
                return bool(due)
        self._sweep_archives(until)
        return bool(due)

    def _sweep_archives(self, until: float) -> None:
        """Start or continue the daily sweep of package archives until the pass must pause.

        Do nothing if the sweep is not due. A failure is logged and ends the sweep until the next
        day.
        """
        if self._sweep is None and self._seconds() >= self._sweep_at:
            self._sweep_at = self._seconds() + SWEEP_SECONDS
            self._sweep = sweep_package_archives(self._stores)
        try:
            for step in self._sweep or ():
                self._limiter.count_step(step)
                if self._must_pause(until):
                    return
        except (OSError, TableError) as error:
            log.warning("archives of packages cannot be swept: %s", error)
        self._sweep = None

    def _refresh_jobs(self) -> bool:
        """Update the jobs from the pending requests; return whether any job is left.

        Remove the job of an experiment without a pending request. Replace the job if the request
        changed. Raises TableError.
        """
        wanted = pending_requests(self._stores.engine.table)
        for experiment_id in self._jobs.keys() - wanted.keys():
            del self._jobs[experiment_id]
        for experiment_id, request in wanted.items():
            job = self._jobs.get(experiment_id)
            if job is None or job.request != request:
                self._jobs[experiment_id] = _CollectionJob(experiment_id, request)
        return bool(self._jobs)

    def _advance_job(self, job: _CollectionJob, until: float) -> None:
        """Run steps of a job until its end or until the pass must pause, and remove a finished job.

        Every exception except Conflict is recorded as a failure: the job starts again after a
        pause, or is removed (see `_record_failure`). After a Conflict, forget the job's steps,
        because a later request replaced the job's request. Raises TableError if the last failure
        cannot be reported.
        """
        try:
            job.work = job.work or self._start_work(job)
            for step in job.work:
                self._limiter.count_step(step)
                if self._must_pause(until):
                    return
        except Conflict:
            # A later request replaced this request; the next pass finds the later request.
            job.work = None
            return
        except (CollectionFailed, CommandRefused, TableError) as error:
            is_transient = getattr(error, "is_transient", True)
            self._record_failure(job, str(error), is_transient=is_transient)
            return
        except Exception as error:
            log.exception("garbage collection of experiment %d failed", job.experiment_id)
            self._record_failure(job, f"internal error: {type(error).__name__}", is_transient=True)
            return
        del self._jobs[job.experiment_id]

    def _must_pause(self, until: float) -> bool:
        """Return whether the time `until` is reached or the rate limiter requires a pause."""
        return self._seconds() >= until or self.pause_seconds > 0

    def _start_work(self, job: _CollectionJob) -> Steps:
        """Return the steps of a job, without steps for a missing experiment. Raises TableError."""
        address = addresses.experiment(job.experiment_id)
        experiment = self._stores.engine.read_state(address)
        if not isinstance(experiment, ExperimentState):
            return iter(())
        if job.request is None:
            ended = experiment.status.is_final
            return remove_marked_files(self._stores, job.experiment_id, ended=ended)
        return execute_request(self._stores, experiment, job.request)

    def _record_failure(self, job: _CollectionJob, why: str, *, is_transient: bool) -> None:
        """Log a failed try and schedule the next try, with a pause that doubles up to PAUSE_MS_MAX.

        The next try starts the work again. The last failure of an experiment's deletion is reported
        to the experiment instead, and the job is removed. A failure is the last after TRIES_MAX
        tries, or if the failure is not transient. Raises TableError if the report fails.
        """
        job.work = None
        job.tries += 1
        last = job.tries >= TRIES_MAX or not is_transient
        level = logging.ERROR if last else logging.WARNING
        log.log(level, "cannot collect garbage of experiment %d: %s", job.experiment_id, why)
        if job.request is not None and job.request.delete and last:
            report_end(self._stores.engine, job.experiment_id, job.request, why)
            del self._jobs[job.experiment_id]
            return
        pause_ms = min(PAUSE_MS_MAX, PAUSE_MS_FIRST << min(job.tries - 1, 16))
        job.due_ms = self._stores.engine.clock() + pause_ms


def pending_requests(table: StateTable) -> dict[int, CollectionRequest | None]:
    """Return the pending request of each experiment, by experiment id.

    None stands for an experiment that has no request but only checkpoints marked for deletion. A
    request includes the removal of marked checkpoints. Raises TableError.
    """
    wanted: dict[int, CollectionRequest | None] = {}
    start: str | None = " "
    while start is not None:
        page = table.query(COLLECTIONS, start, "\x7f", limit=ROWS_READ)
        for row in page.rows:
            wanted.setdefault(*_decode_row(row))
        start = page.next_sort
        if start is not None and page.rows[-1].key.sort.startswith(REMOVALS):
            # A single marked checkpoint is enough, so the experiment's other rows are skipped.
            start = removal_sort_key(_decode_row(page.rows[-1])[0], _LAST)
    return wanted


def _decode_row(row: Row) -> tuple[int, CollectionRequest | None]:
    """Return the experiment id and the request of a row; None for a marked checkpoint."""
    if row.key.sort.startswith(REMOVALS):
        return int(row.key.sort.split("/")[1]), None
    return int(row.key.sort), decode_request(row)
