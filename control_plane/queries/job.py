"""Jobs: the queue of a pool in its order, with why each job waits and when it is to start."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Literal

from control_plane.actors.job_row import JobRow, decode_job, job_sort_key, jobs_partition
from control_plane.actors.records import JobKind
from control_plane.agents.definitions import Defined
from control_plane.bounded_cache import BoundedCache
from control_plane.errors import Code, RequestError
from control_plane.queries import experiment as experiments
from control_plane.queries import instance as instances
from control_plane.queries.answer import Answer
from control_plane.queries.end_estimates import expected_starts
from control_plane.queries.pages import Page, PageRequest, encode_cursor
from control_plane.queries.pool_snapshot import PoolSnapshot, read_pool
from control_plane.scheduling.model import Job
from control_plane.scheduling.queue_positions import QueueEntry
from control_plane.scheduling.schedule import PlannedWaits, plan_waits
from control_plane.services import Services
from control_plane.state.table import Key

_LIST_NAME = "jobs"
JobType = Literal["TYPE_EXPERIMENT", "TYPE_COMMAND", "TYPE_NOTEBOOK", "TYPE_SHELL"]
_JOB_TYPES: dict[JobKind, JobType] = {
    JobKind.EXPERIMENT: "TYPE_EXPERIMENT",
    JobKind.COMMAND: "TYPE_COMMAND",
    JobKind.NOTEBOOK: "TYPE_NOTEBOOK",
    JobKind.SHELL: "TYPE_SHELL",
}
# Jobs and agents of the pools whose plans are kept.
_PLANNED_MAX = 50_000

Choice = Callable[[Sequence[Job]], Iterable[Job]]
"""Takes some of the jobs of a queue."""


class JobView(Answer):
    """A job in its queue; docs/api.md has the fields."""

    job_id: str
    experiment_id: int
    type: JobType
    name: str
    user: str
    resource_pool: str
    preferred_pools: list[str]
    pool_moved_ms: int | None
    pool_move_reason: str
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
    waits_since_ms: int | None
    expected_start_ms: int | None


@dataclass(frozen=True)
class Queue:
    """A pool's jobs in the order of the list, and by job why it waits, of those that were chosen,
    and when it is to start.
    """

    snapshot: PoolSnapshot
    order: Sequence[Job]
    waits: Mapping[int, str]
    starts_ms: Mapping[int, int]

    @property
    def is_ordered(self) -> bool:
        """True where the scheduler serves jobs in an order that users can change."""
        return self.snapshot.settings.scheduler.kind == "priority"


@dataclass(frozen=True)
class QueuePlan:
    """A pool's jobs in the order of the list, and what a plan for them leaves waiting."""

    snapshot: PoolSnapshot
    order: Sequence[Job]
    waits: PlannedWaits


class QueuePlans:
    """The plans of the pools looked at last. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: BoundedCache[str, QueuePlan] = BoundedCache(_PLANNED_MAX)

    def plan_queue(self, snapshot: PoolSnapshot) -> QueuePlan:
        """The plan for a snapshot, which is made once as long as the pool's contents are kept."""
        with self._lock:
            known = self._kept.find(snapshot.pool)
        if known is not None and _has_same_plan(known.snapshot, snapshot):
            return known
        settings = snapshot.settings
        waits = plan_waits(
            snapshot.jobs,
            snapshot.agents,
            settings.scheduler,
            can_grow=bool(settings.provider),
            reservation=snapshot.reservation,
        )
        made = QueuePlan(snapshot, ordered_jobs(snapshot), waits)
        with self._lock:
            self._kept.keep(snapshot.pool, made, len(snapshot.jobs) + len(snapshot.agents))
        return made


def _has_same_plan(one: PoolSnapshot, other: PoolSnapshot) -> bool:
    return (
        one.jobs is other.jobs
        and one.agents is other.agents
        and one.settings == other.settings
        and one.reservation == other.reservation
    )


def load_queue(services: Services, pool: str, choose: Choice | None = None) -> Queue:
    """Load the queue of a pool as it is now. In a closed pool every job waits for that.

    `choose` takes those whose reasons are wanted from all jobs in the order of the list; without
    it they are found for all, which costs a look at the requests of each.
    """
    return read_pool(services, pool, partial(_queue_from_snapshot, services, choose))


def _queue_from_snapshot(
    services: Services, choose: Choice | None, snapshot: PoolSnapshot
) -> Queue:
    plan = services.queue_plans.plan_queue(snapshot)
    chosen = plan.order if choose is None else tuple(choose(plan.order))
    if reason := _closed_reason(snapshot):
        waits = {job.group: reason for job in chosen if job.pending_slots}
        return Queue(snapshot, plan.order, waits, {})
    reasons = plan.waits.reasons({job.group for job in chosen})
    missing = _missing_instance_reasons(services, snapshot, chosen)
    waits = {
        group: "; ".join(filter(None, (why, missing.get(group)))) for group, why in reasons.items()
    }
    return Queue(snapshot, plan.order, waits, expected_starts(services, snapshot))


def _missing_instance_reasons(
    services: Services, snapshot: PoolSnapshot, jobs: Iterable[Job]
) -> Mapping[int, str]:
    """The reason why those of the jobs that wait get no instance; jobs with a label never do."""
    fleet = (
        instances.describe_fleet(services, snapshot.pool)
        if snapshot.settings.provider
        else instances.FleetView()
    )
    if not (why := fleet.trouble or fleet.waits):
        return {}
    return {job.group: why for job in jobs if job.pending_slots and not job.label}


def ordered_jobs(snapshot: PoolSnapshot) -> list[Job]:
    """The jobs of a priority pool as they are served, those of others as they were submitted."""
    if snapshot.settings.scheduler.kind == "priority":
        return sorted(snapshot.jobs, key=lambda job: _queue_entry(job).rank)
    return sorted(snapshot.jobs, key=lambda job: (job.submitted_ms, job.group))


def list_jobs(services: Services, pool: str, page: PageRequest, reverse: bool) -> Page[JobView]:
    """List the jobs of a pool's queue."""
    after = page.start_after(_LIST_NAME, (int,))
    first = 0 if after is None else max(0, int(after[0]))
    end = first + page.limit

    def places(count: int) -> range:
        return (range(count)[::-1] if reverse else range(count))[first:end]

    def choose(order: Sequence[Job]) -> Iterable[Job]:
        return (order[place] for place in places(len(order)))

    queue = load_queue(services, pool, choose)
    count = len(queue.order)
    loaded, _ = services.agents.read_experiments(
        [queue.order[place].group for place in places(count)]
    )
    items = [
        _job_answer(pair, queue, queue.order[place], place)
        for place, pair in zip(places(count), loaded, strict=True)
        if pair is not None
    ]
    cursor = encode_cursor(_LIST_NAME, (end,)) if end < count else None
    return Page(items=items, next_cursor=cursor)


def describe_job(services: Services, experiment_id: int) -> JobView:
    """Describe the job of an experiment; RequestError not_found once it has ended."""
    return describe_jobs(services, [experiment_id])[0]


def describe_jobs(services: Services, experiment_ids: Sequence[int]) -> list[JobView]:
    """Describe the jobs of several experiments, reading each queue once."""
    pools = [experiments.get_experiment(services, one)[0].pool for one in experiment_ids]
    described = {*experiment_ids}
    queues = {
        pool: load_queue(
            services, pool, lambda order: (job for job in order if job.group in described)
        )
        for pool in {*pools}
    }
    return [
        _describe_in_queue(services, queues[pool], experiment_id)
        for pool, experiment_id in zip(pools, experiment_ids, strict=True)
    ]


def _describe_in_queue(services: Services, queue: Queue, experiment_id: int) -> JobView:
    for place, job in enumerate(queue.order):
        if job.group == experiment_id:
            return _job_answer(_load_present(services, experiment_id), queue, job, place)
    loaded = _load_present(services, experiment_id)
    row = services.table.get(Key(jobs_partition(queue.snapshot.pool), job_sort_key(experiment_id)))
    if row is None:
        raise _ended_error(experiment_id)
    idle = _idle_job(experiment_id, decode_job(row.body), queue.snapshot)
    return _job_answer(loaded, queue, idle, None)


def _load_present(services: Services, experiment_id: int) -> Defined:
    loaded = services.agents.read_experiment(experiment_id)
    if loaded is None:
        raise _ended_error(experiment_id)
    return loaded


def _ended_error(experiment_id: int) -> RequestError:
    text = f"job {experiment_id} not found: its experiment has ended"
    return RequestError(Code.NOT_FOUND, text)


def _queue_entry(job: Job) -> QueueEntry:
    return QueueEntry(job.group, job.submitted_ms, job.priority, job.position)


def _job_answer(loaded: Defined, queue: Queue, job: Job, place: int | None) -> JobView:
    """The answer that describes the job of an experiment."""
    state, definition = loaded
    runs = job.allocations != ()
    moved = experiments.pool_move_fields(state, definition)
    waiting = sum(size * count for size, count in job.pending_slots.items())
    return JobView(
        job_id=definition.job_id,
        experiment_id=job.group,
        type=_JOB_TYPES[state.kind],
        name=state.name,
        user=state.owner,
        resource_pool=queue.snapshot.pool,
        preferred_pools=moved["preferred_pools"],
        pool_moved_ms=moved["pool_moved_ms"],
        pool_move_reason=moved["pool_move_reason"],
        scheduler=queue.snapshot.settings.scheduler.kind,
        state="STATE_SCHEDULED" if runs else "STATE_QUEUED",
        jobs_ahead=place if queue.is_ordered else None,
        priority=job.priority,
        weight=job.weight,
        requested_slots=job.held_slots + waiting,
        allocated_slots=job.held_slots,
        is_preemptible=_is_preemptible(queue.snapshot) and definition.job.preemptible,
        submitted_ms=job.submitted_ms,
        progress=state.progress,
        waits=queue.waits.get(job.group, ""),
        waits_since_ms=moved["waits_since_ms"] or job.waits_since_ms,
        expected_start_ms=queue.starts_ms.get(job.group),
    )


def _idle_job(experiment_id: int, row: JobRow, snapshot: PoolSnapshot) -> Job:
    """A job that neither holds slots nor wants any, as a paused one."""
    default = snapshot.settings.default_priority
    return Job(
        group=experiment_id,
        submitted_ms=row.submitted_ms,
        weight=row.weight,
        priority=default if row.priority is None else row.priority,
        position=row.queue_position(),
        max_slots=row.max_slots,
        label=row.label,
    )


def _is_preemptible(snapshot: PoolSnapshot) -> bool:
    rules = snapshot.settings.scheduler
    return rules.kind == "fair_share" or (rules.kind == "priority" and rules.preemption)


def _closed_reason(snapshot: PoolSnapshot) -> str:
    if snapshot.settings.draining:
        return f"pool {snapshot.pool} is draining"
    return f"the budget of pool {snapshot.pool} is used up" if snapshot.settings.over_budget else ""
