"""Jobs as the API shows them: a queue in its order, with why each waits and until when."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from control_plane.actors.jobs import JobRow, job_sort, jobs_of, read_job
from control_plane.api.bodies import Body
from control_plane.api.errors import ApiError, Code
from control_plane.api.pages import Page, PageAsked, write_cursor
from control_plane.api.services import Services
from control_plane.api.views import experiment as experiments
from control_plane.api.views import instance as instances
from control_plane.api.views.books import Books, looked_at
from control_plane.api.views.expectations import expected_starts
from control_plane.scheduling.model import Job
from control_plane.scheduling.positions import Standing
from control_plane.scheduling.schedule import explained
from control_plane.state.table import Key

_KIND = "jobs"


class JobView(Body):
    """See docs/api.md."""

    job_id: str
    experiment_id: int
    type: Literal["TYPE_EXPERIMENT"] = "TYPE_EXPERIMENT"
    name: str
    user: str
    resource_pool: str
    scheduler: str
    state: Literal["STATE_QUEUED", "STATE_SCHEDULED"]
    jobs_ahead: int | None
    priority: int
    weight: float
    requested_slots: int
    allocated_slots: int
    is_preemptible: bool
    submitted_ms: int
    progress: float | None
    waits: str
    expected_start_ms: int | None


@dataclass(frozen=True)
class Queue:
    """A pool's jobs in the order of the list, why they wait, and when they are to start."""

    books: Books
    order: Sequence[Job]
    waits: Mapping[int, str]
    starts_ms: Mapping[int, int]

    @property
    def is_ordered(self) -> bool:
        """Whether the scheduler serves jobs in an order that people can change."""
        return self.books.settings.scheduler.kind == "priority"


def queue(services: Services, pool: str) -> Queue:
    """The queue of a pool as it is now. One that starts nothing says so of each job."""
    return looked_at(services, pool, partial(_queue, services))


def _queue(services: Services, now: Books) -> Queue:
    if closed := _closed(now):
        waits = {job.group: closed for job in now.jobs if job.pending_slots}
        return Queue(now, ordered(now), waits, {})
    found = explained(now.jobs, now.agents, now.settings.scheduler)
    missing = _no_instances(services, now)
    waits = {
        group: "; ".join(filter(None, (why, missing.get(group)))) for group, why in found.items()
    }
    return Queue(now, ordered(now), waits, expected_starts(services, now))


def _no_instances(services: Services, now: Books) -> Mapping[int, str]:
    """Why those that wait get no instance, by job; no instance has a label."""
    fleet = instances.fleet(services, now.pool) if now.settings.provider else instances.FleetView()
    if not (why := fleet.trouble or fleet.waits):
        return {}
    return {job.group: why for job in now.jobs if job.pending_slots and not job.label}


def ordered(now: Books) -> list[Job]:
    """The jobs of a priority pool as they are served, those of others as they were submitted."""
    if now.settings.scheduler.kind == "priority":
        return sorted(now.jobs, key=lambda job: _standing(job).rank)
    return sorted(now.jobs, key=lambda job: (job.submitted_ms, job.group))


def jobs(services: Services, pool: str, asked: PageAsked, reverse: bool) -> Page[JobView]:
    """A page of a queue."""
    now = queue(services, pool)
    places = list(enumerate(now.order))
    if reverse:
        places.reverse()
    after = asked.after(_KIND, (int,))
    first = 0 if after is None else max(0, int(after[0]))
    shown = [_shown(services, now, job, place) for place, job in places[first:][: asked.limit]]
    end = first + asked.limit
    cursor = write_cursor(_KIND, (end,)) if end < len(places) else None
    return Page(items=[job for job in shown if job is not None], next_cursor=cursor)


def job(services: Services, experiment_id: int) -> JobView:
    """The job of an experiment; ApiError not_found for one that has none any more."""
    return several(services, [experiment_id])[0]


def several(services: Services, experiment_ids: Sequence[int]) -> list[JobView]:
    """The same of several, each queue being read once."""
    queues: dict[str, Queue] = {}
    shown = []
    for experiment_id in experiment_ids:
        pool = experiments.found(services, experiment_id)[0].pool
        if pool not in queues:
            queues[pool] = queue(services, pool)
        shown.append(_found(services, queues[pool], experiment_id))
    return shown


def _found(services: Services, now: Queue, experiment_id: int) -> JobView:
    for place, job in enumerate(now.order):
        if job.group == experiment_id:
            return _known(_shown(services, now, job, place), experiment_id)
    row = services.table.get(Key(jobs_of(now.books.pool), job_sort(experiment_id)))
    if row is None:
        return _known(None, experiment_id)
    idle = _idle(experiment_id, read_job(row.body), now.books)
    return _known(_shown(services, now, idle, None), experiment_id)


def _known(shown: JobView | None, experiment_id: int) -> JobView:
    if shown is None:
        text = f"job {experiment_id} not found: its experiment has ended"
        raise ApiError(Code.NOT_FOUND, text)
    return shown


def _standing(job: Job) -> Standing:
    return Standing(job.group, job.submitted_ms, job.priority, job.position)


def _shown(services: Services, now: Queue, job: Job, place: int | None) -> JobView | None:
    """None for one that was deleted since."""
    known = services.agents.experiment(job.group)
    if known is None:
        return None
    state, definition = known
    # One that has none of them has no way to read them either.
    runs = job.holdings != ()
    waiting = sum(size * count for size, count in job.pending_slots.items())
    return JobView(
        job_id=definition.job_id,
        experiment_id=job.group,
        name=state.name,
        user=state.owner,
        resource_pool=now.books.pool,
        scheduler=now.books.settings.scheduler.kind,
        state="STATE_SCHEDULED" if runs else "STATE_QUEUED",
        jobs_ahead=place if now.is_ordered else None,
        priority=job.priority,
        weight=job.weight,
        requested_slots=job.held_slots + waiting,
        allocated_slots=job.held_slots,
        is_preemptible=_is_preemptible(now.books),
        submitted_ms=job.submitted_ms,
        progress=state.progress,
        waits=now.waits.get(job.group, ""),
        expected_start_ms=now.starts_ms.get(job.group),
    )


def _idle(experiment_id: int, row: JobRow, now: Books) -> Job:
    """A job that neither has slots nor wants any, as a paused one."""
    default = now.settings.default_priority
    return Job(
        group=experiment_id,
        submitted_ms=row.submitted_ms,
        weight=row.weight,
        priority=default if row.priority is None else row.priority,
        position=row.at(),
        max_slots=row.max_slots,
        label=row.label,
    )


def _is_preemptible(now: Books) -> bool:
    rules = now.settings.scheduler
    return rules.kind == "fair_share" or (rules.kind == "priority" and rules.preemption)


def _closed(now: Books) -> str:
    if now.settings.draining:
        return f"pool {now.pool} is draining"
    return f"the budget of pool {now.pool} is used up" if now.settings.over_budget else ""
