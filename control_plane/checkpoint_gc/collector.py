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
from control_plane.checkpoint_gc.rate_limit import DeletionRateLimiter, Steps
from control_plane.checkpoint_gc.removal import remove_marked_files
from control_plane.checkpoint_gc.stores import CollectionFailed, Stores
from control_plane.state.table import Conflict, Row, StateTable, TableError

log = logging.getLogger(__name__)

BUDGET_SECONDS = 0.5
# Tries of a deletion before its experiment is told that it failed; a collection is tried for ever.
TRIES_MAX = 5
PAUSE_MS_FIRST = 2_000
PAUSE_MS_MAX = 300_000
ROWS_READ = 100

_LAST = "~"


@dataclass
class _CollectionJob:
    """The work for one experiment; `request` None: only its checkpoints marked for deletion."""

    experiment_id: int
    request: CollectionRequest | None
    work: Steps | None = None
    tries: int = 0
    due_ms: int = 0


class Collector:
    """Executes collection requests. `seconds` is a monotonic clock, the same as the `limiter`'s."""

    def __init__(
        self,
        stores: Stores,
        seconds: Callable[[], float] = time.monotonic,
        limiter: DeletionRateLimiter | None = None,
    ) -> None:
        """Without a `limiter`, the default limit applies."""
        self._stores = stores
        self._seconds = seconds
        self._limiter = limiter or DeletionRateLimiter(seconds=seconds)
        self._jobs: dict[int, _CollectionJob] = {}

    @property
    def pause_seconds(self) -> float:
        """Seconds until the rate limit allows the next pass."""
        return self._limiter.pause_seconds()

    def collect_while(
        self,
        left_ms: Callable[[], int],
        reserve_ms: int,
        sleep: Callable[[float], None] = time.sleep,
    ) -> int:
        """Run passes, with the pauses of the rate limiter, while work is due and more than
        `reserve_ms` is left; return the number of passes. Raises TableError.
        """
        passes = 0
        while left_ms() - self.pause_seconds * 1000 > reserve_ms:
            sleep(self.pause_seconds)
            if not self.collect():
                break
            passes += 1
        return passes

    def collect(self, budget_seconds: float = BUDGET_SECONDS) -> bool:
        """Run one pass of about that length and return whether anything was due.

        A pass runs at least one step, unless the rate limiter does not allow it yet.

        Raises:
            TableError: the table does not answer; the next pass goes on.
        """
        if not self._refresh_jobs():
            return False
        self._limiter.refresh_limit()
        until = self._seconds() + budget_seconds
        now_ms = self._stores.engine.clock()
        # One that is due later than any pause lasts was put off by a clock that was ahead.
        due = [job for job in self._jobs.values() if not 0 < job.due_ms - now_ms <= PAUSE_MS_MAX]
        if due and self.pause_seconds:
            return True
        for job in due:
            # To the end of the line: jobs that this pass did not reach are first in the next.
            self._jobs[job.experiment_id] = self._jobs.pop(job.experiment_id)
            self._advance_job(job, until)
            if self._must_pause(until):
                break
        return bool(due)

    def _refresh_jobs(self) -> bool:
        """Add jobs for new requests and drop finished ones; return whether any job is left."""
        wanted = pending_requests(self._stores.engine.table)
        for experiment_id in self._jobs.keys() - wanted.keys():
            del self._jobs[experiment_id]
        for experiment_id, request in wanted.items():
            job = self._jobs.get(experiment_id)
            if job is None or job.request != request:
                self._jobs[experiment_id] = _CollectionJob(experiment_id, request)
        return bool(self._jobs)

    def _advance_job(self, job: _CollectionJob, until: float) -> None:
        try:
            job.work = job.work or self._start_work(job)
            for step in job.work:
                self._limiter.count_step(step)
                if self._must_pause(until):
                    return
        except Conflict:
            # Replaced by a later request, which the next pass finds.
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
        return self._seconds() >= until or self.pause_seconds > 0

    def _start_work(self, job: _CollectionJob) -> Steps:
        address = addresses.experiment(job.experiment_id)
        experiment = self._stores.engine.read_state(address)
        if not isinstance(experiment, ExperimentState):
            return iter(())
        if job.request is None:
            ended = experiment.status.is_final
            return remove_marked_files(self._stores, job.experiment_id, ended=ended)
        return execute_request(self._stores, experiment, job.request)

    def _record_failure(self, job: _CollectionJob, why: str, *, is_transient: bool) -> None:
        """Schedule another try, later each time; report a deletion's last failure to its
        experiment.
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
    """The pending work, by experiment. A request includes the checkpoints marked for deletion."""
    wanted: dict[int, CollectionRequest | None] = {}
    start: str | None = " "
    while start is not None:
        page = table.query(COLLECTIONS, start, "\x7f", limit=ROWS_READ)
        for row in page.rows:
            wanted.setdefault(*_decode_row(row))
        start = page.next_sort
        if start is not None and page.rows[-1].key.sort.startswith(REMOVALS):
            # One of an experiment's checkpoints marked for deletion is enough to know.
            start = removal_sort_key(_decode_row(page.rows[-1])[0], _LAST)
    return wanted


def _decode_row(row: Row) -> tuple[int, CollectionRequest | None]:
    if row.key.sort.startswith(REMOVALS):
        return int(row.key.sort.split("/")[1]), None
    return int(row.key.sort), decode_request(row)
