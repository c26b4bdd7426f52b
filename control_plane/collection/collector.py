"""The collector: a part of the tick that works off the rows of `collections` in short passes.

A row is either an experiment's request or a checkpoint that was condemned. What is under way for
an experiment is kept between passes as far as it has come; should it be lost, it begins again and
finds done what was done. Two collectors at once are a waste and no harm.
"""

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from control_plane.actors import addresses
from control_plane.actors.experiment_state import ExperimentState
from control_plane.actors.step import Refused
from control_plane.actors.trial_checkpoints import COLLECTIONS, REMOVALS, removal_sort
from control_plane.collection.removal import condemned_files
from control_plane.collection.stores import CollectionFailed, Stores
from control_plane.collection.work import Request, collected, report, request_of
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
class _Job:
    """The work for one experiment; `request` None: only its condemned checkpoints."""

    experiment_id: int
    request: Request | None
    work: Iterator[None] | None = None
    tries: int = 0
    due_ms: int = 0


class Collector:
    """Works off requests. `seconds` is a clock that only goes forward."""

    def __init__(self, stores: Stores, seconds: Callable[[], float] = time.monotonic) -> None:
        self._stores = stores
        self._seconds = seconds
        self._jobs: dict[int, _Job] = {}

    def collect(self, budget_seconds: float = BUDGET_SECONDS) -> bool:
        """One pass of about that length, one step at least; whether it found anything to do now.

        Raises:
            TableError: the table does not answer; the next pass goes on.
        """
        if not self._look():
            return False
        until = self._seconds() + budget_seconds
        now_ms = self._stores.engine.clock()
        due = [job for job in self._jobs.values() if job.due_ms <= now_ms]
        for job in due:
            # To the end of the line: whoever was not served in this pass is first in the next.
            self._jobs[job.experiment_id] = self._jobs.pop(job.experiment_id)
            self._advance(job, until)
            if self._seconds() >= until:
                break
        return bool(due)

    def _look(self) -> bool:
        """Takes up what is new and drops what is over; whether there is anything."""
        wanted = wanted_of(self._stores.engine.table)
        for experiment_id in self._jobs.keys() - wanted.keys():
            del self._jobs[experiment_id]
        for experiment_id, request in wanted.items():
            job = self._jobs.get(experiment_id)
            if job is None or job.request != request:
                self._jobs[experiment_id] = _Job(experiment_id, request)
        return bool(self._jobs)

    def _advance(self, job: _Job, until: float) -> None:
        try:
            job.work = job.work or self._begun(job)
            for _ in job.work:
                if self._seconds() >= until:
                    return
        except Conflict:
            # Replaced by a later request, which the next pass finds.
            job.work = None
            return
        except (CollectionFailed, Refused, TableError) as error:
            self._failed(job, str(error), passing=getattr(error, "passing", True))
            return
        except Exception as error:
            log.exception("collecting experiment %d failed", job.experiment_id)
            self._failed(job, f"internal error: {type(error).__name__}", passing=True)
            return
        del self._jobs[job.experiment_id]

    def _begun(self, job: _Job) -> Iterator[None]:
        address = addresses.experiment(job.experiment_id)
        experiment = self._stores.engine.state(address)
        if not isinstance(experiment, ExperimentState):
            return iter(())
        if job.request is None:
            ended = experiment.status.final
            return condemned_files(self._stores, job.experiment_id, ended=ended)
        return collected(self._stores, experiment, job.request)

    def _failed(self, job: _Job, why: str, *, passing: bool) -> None:
        """Waits, longer each time; of a deletion the experiment hears in the end."""
        job.work = None
        job.tries += 1
        last = job.tries >= TRIES_MAX or not passing
        level = logging.ERROR if last else logging.WARNING
        log.log(level, "experiment %d cannot be collected: %s", job.experiment_id, why)
        if job.request is not None and job.request.delete and last:
            report(self._stores.engine, job.experiment_id, job.request, why)
            del self._jobs[job.experiment_id]
            return
        pause_ms = min(PAUSE_MS_MAX, PAUSE_MS_FIRST << min(job.tries - 1, 16))
        job.due_ms = self._stores.engine.clock() + pause_ms


def wanted_of(table: StateTable) -> dict[int, Request | None]:
    """By experiment, what there is to do. A request comes with the condemned checkpoints."""
    wanted: dict[int, Request | None] = {}
    start: str | None = " "
    while start is not None:
        page = table.query(COLLECTIONS, start, "\x7f", limit=ROWS_READ)
        for row in page.rows:
            wanted.setdefault(*_read(row))
        start = page.next_sort
        if start is not None and page.rows[-1].key.sort.startswith(REMOVALS):
            # One of an experiment's condemned checkpoints is enough to know.
            start = removal_sort(_read(page.rows[-1])[0], _LAST)
    return wanted


def _read(row: Row) -> tuple[int, Request | None]:
    if row.key.sort.startswith(REMOVALS):
        return int(row.key.sort.split("/")[1]), None
    return int(row.key.sort), request_of(row)
