"""Queries of jobs: a pool's queue, the reasons why jobs wait, and expected starts."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import Literal

from control_plane.actors.job_row import (
    JobRow,
    decode_job,
    job_sort_key,
    jobs_partition,
    order_revision,
)
from control_plane.actors.records import JobKind
from control_plane.bounded_cache import BoundedCache
from control_plane.engine.experiment_reader import Defined
from control_plane.errors import Code, RequestError
from control_plane.fleet.records import InstanceState
from control_plane.queries import experiment as experiments
from control_plane.queries import instance as instances
from control_plane.queries.answer import Answer
from control_plane.queries.conditions import ExperimentCondition, experiment_condition
from control_plane.queries.end_estimates import expected_starts
from control_plane.queries.pages import Page, PageRequest, encode_cursor
from control_plane.queries.pool_snapshot import PoolSnapshot, read_pool
from control_plane.scheduling.model import Job
from control_plane.scheduling.queue_positions import QueueEntry
from control_plane.scheduling.quiet_hours import is_held_back, quiet_text
from control_plane.scheduling.schedule import PlannedWaits, plan_waits
from control_plane.services import Services
from control_plane.state.table import Key
from detcloud.shared.plurals import count_text

_LIST_NAME = "jobs"
JobType = Literal["TYPE_EXPERIMENT", "TYPE_COMMAND", "TYPE_NOTEBOOK", "TYPE_SHELL"]
_JOB_TYPES: dict[JobKind, JobType] = {
    JobKind.EXPERIMENT: "TYPE_EXPERIMENT",
    JobKind.COMMAND: "TYPE_COMMAND",
    JobKind.NOTEBOOK: "TYPE_NOTEBOOK",
    JobKind.SHELL: "TYPE_SHELL",
}
# The most jobs and agents in the cached plans of all pools.
_PLANNED_MAX = 50_000

Choice = Callable[[Sequence[Job]], Iterable[Job]]
"""Selects jobs of a queue."""


class JobView(Answer):
    """A job in the queue of a pool; docs/api.md describes the fields."""

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
    kind: JobKind
    condition: ExperimentCondition
    jobs_ahead: int | None
    priority: int
    weight: float
    position: str | None
    revision: str
    requested_slots: int
    allocated_slots: int
    is_preemptible: bool
    submitted_ms: int
    progress: float | None
    metric: str
    smaller_is_better: bool
    best_metric: float | None
    waits: str
    waits_since_ms: int | None
    expected_start_ms: int | None


@dataclass(frozen=True)
class Queue:
    """The queue of a pool."""

    snapshot: PoolSnapshot
    order: Sequence[Job]
    """The pool's jobs in the order of the list."""
    waits: Mapping[int, str]
    """The reasons why the selected jobs wait, by experiment id."""
    starts_ms: Mapping[int, int]
    """The expected starts of waiting jobs in epoch ms, by experiment id, where known."""

    @property
    def is_ordered(self) -> bool:
        """Whether the pool's scheduler serves jobs in an order that users can change: only
        `priority`.
        """
        return self.snapshot.settings.scheduler.kind == "priority"


@dataclass(frozen=True)
class QueuePlan:
    """A scheduling plan for a snapshot of a pool."""

    snapshot: PoolSnapshot
    order: Sequence[Job]
    """The pool's jobs in the order of the list."""
    waits: PlannedWaits
    """The jobs that still wait after the plan, with the reasons."""


class QueuePlans:
    """Cache of the scheduling plans of recently read pools. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: BoundedCache[str, QueuePlan] = BoundedCache(_PLANNED_MAX)

    def plan_queue(self, snapshot: PoolSnapshot) -> QueuePlan:
        """Return the scheduling plan for a snapshot.

        The cached plan of the pool is returned if its jobs, agents, settings and reservation are
        the same. Otherwise a plan is computed, which reads the jobs' requests, and cached. Errors
        of rows that contradict each other are raised, for `read_pool` to repeat the read.
        """
        with self._lock:
            known = self._kept.find(snapshot.pool)
        if known is not None and _has_same_plan(known.snapshot, snapshot):
            return known
        settings = snapshot.settings
        waits = plan_waits(
            snapshot.startable,
            snapshot.agents,
            settings.scheduler,
            can_grow=bool(settings.provider),
            reservation=snapshot.reservation,
        )
        plan = QueuePlan(snapshot, ordered_jobs(snapshot), waits)
        with self._lock:
            self._kept.keep(snapshot.pool, plan, len(snapshot.jobs) + len(snapshot.agents))
        return plan


def _has_same_plan(planned: PoolSnapshot, current: PoolSnapshot) -> bool:
    """Return whether the plan for `planned` is also the plan for `current`.

    True if jobs and agents are the same objects, and settings, reservation and quiet hours are
    equal.
    """
    return (
        planned.jobs is current.jobs
        and planned.agents is current.agents
        and planned.settings == current.settings
        and planned.reservation == current.reservation
        and planned.period == current.period
    )


def load_queue(services: Services, pool: str, choose: Choice | None = None) -> Queue:
    """Load the current queue of a pool. The queue of an unknown pool is empty.

    In a draining pool, or a pool that has used up its budget, this is every job's reason to wait,
    and no starts are expected. In quiet hours, the same is true of the jobs that are held back.

    Args:
        services: the services that read the pool.
        pool: the name of the pool.
        choose: selects the jobs for which `waits` is filled. Each of them costs a pass over its
            requests. None selects all jobs.

    Raises:
        RequestError: unavailable, if the pool changes too fast to be read.
    """
    return read_pool(services, pool, partial(_queue_from_snapshot, services, choose))


def _queue_from_snapshot(
    services: Services, choose: Choice | None, snapshot: PoolSnapshot
) -> Queue:
    """Return the queue of a snapshot, with reasons and expected starts of waiting jobs.

    `choose` is as in `load_queue`. Reads the fleet, trials and metrics.
    """
    plan = services.cache_of(QueuePlans).plan_queue(snapshot)
    chosen = plan.order if choose is None else tuple(choose(plan.order))
    if reason := _closed_reason(snapshot):
        waits = {job.group: reason for job in chosen if job.pending_slots}
        return Queue(snapshot, plan.order, waits, {})
    reasons = plan.waits.reasons({job.group for job in chosen})
    missing = _missing_instance_reasons(services, snapshot, chosen)
    quiet = quiet_text(snapshot.pool, snapshot.settings.quiet_periods, services.now_ms())
    waits = {
        group: "; ".join(filter(None, (why, missing.get(group)))) for group, why in reasons.items()
    }
    waits |= dict.fromkeys(_held_back_groups(snapshot, chosen), quiet)
    # Jobs that quiet hours hold back have no expected start.
    startable = replace(snapshot, jobs=snapshot.startable)
    return Queue(snapshot, plan.order, waits, expected_starts(services, startable))


def _held_back_groups(snapshot: PoolSnapshot, jobs: Iterable[Job]) -> Iterator[int]:
    """Yield the experiment ids of the waiting jobs that the present quiet hours hold back."""
    period = snapshot.period
    if period is not None:
        for job in jobs:
            if job.pending_slots and is_held_back(period, job.priority):
                yield job.group


def _missing_instance_reasons(
    services: Services, snapshot: PoolSnapshot, jobs: Iterable[Job]
) -> Mapping[int, str]:
    """Return the reasons why waiting jobs get no instance, by experiment id.

    Jobs with a label are left out, because no instance is launched for them. Without a reason of
    the provisioner, the reason is the number of starting instances. Return {} for a pool without a
    provider, and if neither a reason nor a starting instance exists.
    """
    waiting = [job for job in jobs if job.pending_slots and not job.label]
    if not (waiting and snapshot.settings.provider):
        return {}
    fleet = instances.describe_fleet(services, snapshot.pool)
    why = fleet.trouble or fleet.waits or _starting_instances(services, snapshot.pool)
    return {job.group: why for job in waiting} if why else {}


def _starting_instances(services: Services, pool: str) -> str:
    """Return the number of starting instances as a text: "2 instances are starting".

    An instance is starting until its agent enrolls. Return "" without a starting instance.
    """
    states = [one.state for one in instances.list_instances(services, pool)]
    count = states.count(InstanceState.STARTING)
    return (
        f"{count_text(count, 'instance')} {'is' if count == 1 else 'are'} starting" if count else ""
    )


def ordered_jobs(snapshot: PoolSnapshot) -> list[Job]:
    """Return the snapshot's jobs in the order of the list.

    A priority pool lists jobs in the order in which it serves them, other pools by submission.
    """
    if snapshot.settings.scheduler.kind == "priority":
        return sorted(snapshot.jobs, key=lambda job: _queue_entry(job).rank)
    return sorted(snapshot.jobs, key=lambda job: (job.submitted_ms, job.group))


def list_jobs(services: Services, pool: str, page: PageRequest, reverse: bool) -> Page[JobView]:
    """Return a page of the jobs that hold or request slots of a pool, in the order of the queue.

    Jobs of experiments that no longer exist are left out, so that a page may be short. Empty for an
    unknown pool.

    Args:
        services: the services that read the pool and its jobs.
        pool: the name of the pool.
        page: the request.
        reverse: list the last job of the queue first.

    Raises:
        RequestError: invalid, for a cursor of another list; unavailable, if the pool changes too
            fast to be read.
    """
    after = page.start_after(_LIST_NAME, (int,))
    first = 0 if after is None else max(0, int(after[0]))
    end = first + page.limit

    def places(count: int) -> range:
        return (range(count)[::-1] if reverse else range(count))[first:end]

    def choose(order: Sequence[Job]) -> Iterable[Job]:
        return (order[place] for place in places(len(order)))

    queue = load_queue(services, pool, choose)
    count = len(queue.order)
    loaded, _ = services.experiments.read_experiments(
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
    """Return the job of an experiment, also of a paused experiment.

    Raises:
        RequestError: not_found, if the experiment does not exist or has ended; unavailable, if the
            pool changes too fast to be read.
    """
    return describe_jobs(services, [experiment_id])[0]


def describe_jobs(services: Services, experiment_ids: Sequence[int]) -> list[JobView]:
    """Return the jobs of experiments, in the order of the ids. Read each pool's queue once.

    Raises:
        RequestError: not_found, if one of the experiments does not exist or has ended; unavailable,
            if a pool changes too fast to be read.
    """
    pools = [experiments.get_experiment(services, number)[0].pool for number in experiment_ids]
    selected = {*experiment_ids}
    queues = {
        pool: load_queue(
            services, pool, lambda order: (job for job in order if job.group in selected)
        )
        for pool in {*pools}
    }
    return [
        _describe_in_queue(services, queues[pool], experiment_id)
        for pool, experiment_id in zip(pools, experiment_ids, strict=True)
    ]


def _describe_in_queue(services: Services, queue: Queue, experiment_id: int) -> JobView:
    """Return the job of an experiment in the pool of `queue`; a paused job is not in the queue.

    The weight, priority and position are those of the job's row, because the pool learns of a
    change a moment later.

    Raises:
        RequestError: not_found, if the experiment does not exist or has no job row, because it has
            ended.
    """
    loaded = _load_experiment(services, experiment_id)
    row = services.table.get(Key(jobs_partition(queue.snapshot.pool), job_sort_key(experiment_id)))
    stored = None if row is None else _idle_job(experiment_id, decode_job(row.body), queue.snapshot)
    for place, job in enumerate(queue.order):
        if job.group == experiment_id:
            return _job_answer(loaded, queue, _with_stored_order(job, stored), place)
    if stored is None:
        raise _ended_error(experiment_id)
    return _job_answer(loaded, queue, stored, None)


def _with_stored_order(job: Job, stored: Job | None) -> Job:
    """Return the job with the weight, priority and position of `stored`.

    Return the job unchanged if `stored` is None.
    """
    if stored is None:
        return job
    return replace(job, weight=stored.weight, priority=stored.priority, position=stored.position)


def _load_experiment(services: Services, experiment_id: int) -> Defined:
    """Load the state and definition of a job's experiment, also of an ended experiment.

    Raises:
        RequestError: not_found, if the experiment does not exist or was deleted after the queue was
            read.
    """
    loaded = services.experiments.read_experiment(experiment_id)
    if loaded is None:
        raise _ended_error(experiment_id)
    return loaded


def _ended_error(experiment_id: int) -> RequestError:
    """Return the error not_found for the job of an experiment that has ended."""
    text = f"job {experiment_id} not found: its experiment has ended"
    return RequestError(Code.NOT_FOUND, text)


def _queue_entry(job: Job) -> QueueEntry:
    """Return the place of a job in a priority pool's queue."""
    return QueueEntry(job.group, job.submitted_ms, job.priority, job.position)


def _job_answer(loaded: Defined, queue: Queue, job: Job, place: int | None) -> JobView:
    """Return the answer for a job.

    Args:
        loaded: the job's experiment.
        queue: the queue of the pool.
        job: the job.
        place: the job's index in the queue, or None for a job that is not in the queue.
    """
    state, definition = loaded
    runs = job.allocations != ()
    moved = experiments.pool_move_fields(state, definition)
    waiting = sum(size * count for size, count in job.pending_slots.items())
    requests = sum(job.pending_slots.values())
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
        kind=state.kind,
        condition=experiment_condition(state.status, running=int(runs), queued=requests),
        jobs_ahead=place if queue.is_ordered else None,
        priority=job.priority,
        weight=job.weight,
        position=f"{job.position:f}" if queue.is_ordered else None,
        revision=order_revision(job.weight, job.priority, job.position),
        requested_slots=job.held_slots + waiting,
        allocated_slots=job.held_slots,
        is_preemptible=_is_preemptible(queue.snapshot) and definition.job.preemptible,
        submitted_ms=job.submitted_ms,
        progress=state.progress,
        metric=state.metric,
        smaller_is_better=state.smaller_is_better,
        best_metric=state.best_metric,
        waits=queue.waits.get(job.group, ""),
        waits_since_ms=moved["waits_since_ms"] or job.waits_since_ms,
        expected_start_ms=queue.starts_ms.get(job.group),
    )


def _idle_job(experiment_id: int, row: JobRow, snapshot: PoolSnapshot) -> Job:
    """Return the job in a row, for a job without slots and requests (a paused job).

    A job without a priority has the pool's default priority.
    """
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
    """Return whether the pool's scheduler preempts allocations.

    True for `fair_share`, and for `priority` with preemption.
    """
    rules = snapshot.settings.scheduler
    return rules.kind == "fair_share" or (rules.kind == "priority" and rules.preemption)


def _closed_reason(snapshot: PoolSnapshot) -> str:
    """Return the reason why the pool starts no trials, or "" for an open pool."""
    if snapshot.settings.draining:
        return f"pool {snapshot.pool} is draining"
    return f"the budget of pool {snapshot.pool} is used up" if snapshot.settings.over_budget else ""
