"""Forecasts of the start of each waiting job, by running the scheduler ahead of time."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from sys import maxsize

from control_plane.scheduling.model import (
    AgentCapacity,
    AllocationRequest,
    AllocationStart,
    Job,
    Placement,
    RunningAllocation,
    SchedulePlan,
    SchedulerRules,
    job_with_totals,
)
from control_plane.scheduling.schedule import schedule_jobs

PLANS_MAX = 100
"""The plans of one forecast. The start of a job that still waits then is unknown."""
# Starts in a forecast get larger numbers than all real starts of the pool.
_STARTED = 2**53

Scheduler = Callable[[Iterable[Job], Iterable[AgentCapacity], SchedulerRules, int], SchedulePlan]
"""A scheduler with the arguments of `schedule_jobs`."""


def expected_starts(
    jobs: Iterable[Job],
    agents: Iterable[AgentCapacity],
    rules: SchedulerRules,
    *,
    now_ms: int,
    ends_ms: Mapping[str, int],
    run_ms: Mapping[int, int] | None = None,
    plans_max: int = PLANS_MAX,
    schedule: Scheduler = schedule_jobs,
) -> dict[int, int | None]:
    """Return when the next request of each waiting job starts (epoch ms), by experiment id.

    An unknown start is None: the job still waits when the forecast stops, or when no allocation
    ends any more. Jobs without pending requests are left out.

    The forecast repeats plans in virtual time. Preempted allocations stop at once and are pending
    again. An expected end in the past counts as now. The arguments are not changed.

    Args:
        now_ms: the present time in epoch ms, at which the first plan is made.
        ends_ms: when running allocations are expected to end (epoch ms), by allocation id. Other
            allocations never end.
        run_ms: the expected duration of the runs of a job, by experiment id. Runs of other jobs
            never end.
        plans_max: the number of plans after which the forecast stops.
        schedule: `schedule_jobs` with further facts about the pool bound.
    """
    pool = _PoolForecast(jobs, agents, ends_ms, run_ms or {})
    expected: dict[int, int | None] = {
        group: None for group, job in pool.jobs.items() if job.pending
    }
    clock: int | None = now_ms
    for _ in range(plans_max):
        if clock is None or None not in expected.values():
            break
        plan = schedule(pool.jobs.values(), pool.agents.values(), rules, maxsize)
        for start in plan.starts:
            pool.start_request(start, clock)
            if expected.get(start.request.group, clock) is None:
                expected[start.request.group] = clock
        for victim in plan.victims:
            pool.preempt_allocation(victim.allocation, clock)
        if not plan.victims:
            clock = pool.advance_to_next_end(clock)
        pool.refresh_totals()
    return expected


class _PoolForecast:
    """The state of a pool in virtual time, which begins with the real state.

    `jobs` and `agents` are the present jobs by experiment id and agents by name. `jobs` change only
    in `refresh_totals`.

    Args:
        ends_ms: when allocations are expected to end (epoch ms), by allocation id.
        run_ms: the expected duration of the runs of a job, by experiment id.
    """

    def __init__(
        self,
        jobs: Iterable[Job],
        agents: Iterable[AgentCapacity],
        ends_ms: Mapping[str, int],
        run_ms: Mapping[int, int],
    ) -> None:
        self.jobs = {job.group: job_with_totals(job) for job in jobs}
        self.agents = {agent.agent: agent for agent in agents}
        self._ends = dict(ends_ms)
        self._run_ms = run_ms
        self._left_ms: dict[str, int] = {}
        self._pending = {
            group: {request.allocation_id: request for request in job.pending}
            for group, job in self.jobs.items()
        }
        self._running = {
            group: {running.allocation_id: running for running in job.allocations}
            for group, job in self.jobs.items()
        }
        self._group_of = {
            allocation: group
            for group, allocations in self._running.items()
            for allocation in allocations
        }
        self._changed: set[int] = set()
        self._started = _STARTED

    def start_request(self, start: AllocationStart, now_ms: int) -> None:
        """Run a pending request at the given placements until the expected end. Takes the slots.

        The slots of `agents` change at once, and `jobs` at the next `refresh_totals`. An allocation
        that this forecast preempted, with an expected end, runs for the rest of its time. Other
        allocations run for the job's expected duration, or never end without an expected duration.
        Raises KeyError for a request that is not pending.

        Args:
            now_ms: the virtual time in epoch ms.
        """
        request = start.request
        group, allocation = request.group, request.allocation_id
        del self._pending[group][allocation]
        self._started += 1
        self._running[group][allocation] = RunningAllocation(
            allocation,
            request.slots,
            group,
            self._started,
            preemptible=request.preemptible,
            placements=start.placements,
        )
        self._group_of[allocation] = group
        self._changed.add(group)
        self._adjust_capacity(start.placements, 1)
        run_ms = self._left_ms.pop(allocation, self._run_ms.get(group))
        if run_ms is not None:
            self._ends[allocation] = now_ms + run_ms

    def preempt_allocation(self, running: RunningAllocation, now_ms: int) -> None:
        """Stop an allocation, free the slots, and queue the rest of the run as the job's last
        request.

        Raises KeyError for an allocation that does not run.
        """
        group, job = running.group, self.jobs[running.group]
        if running.allocation_id in self._ends:
            self._left_ms[running.allocation_id] = self._ends[running.allocation_id] - now_ms
        self._end_allocation(running.allocation_id)
        ticket = f"{job.submitted_ms:015d}.~{len(self._pending[group]):012d}"
        self._pending[group][running.allocation_id] = AllocationRequest(
            running.allocation_id,
            running.slots,
            ticket,
            group,
            job.label,
            job.single_agent,
            running.preemptible,
            refused_kinds=job.refused_kinds,
        )

    def advance_to_next_end(self, now_ms: int) -> int | None:
        """End the allocations with the earliest expected end, and all that should have ended before
        `now_ms`.

        Return the time of the end (epoch ms), which is at least `now_ms`. Return None, without a
        change, if no running allocation has an expected end.
        """
        running = {name: at for name, at in self._ends.items() if name in self._group_of}
        if not running:
            return None
        next_ms = max(now_ms, min(running.values()))
        for name, at in running.items():
            if at <= next_ms:
                self._end_allocation(name)
        return next_ms

    def refresh_totals(self) -> None:
        """Recompute the requests, allocations and totals of the jobs that changed since the last
        call.
        """
        for group in self._changed:
            pending = sorted(self._pending[group].values(), key=lambda request: request.ticket)
            allocations = tuple(self._running[group].values())
            self.jobs[group] = job_with_totals(
                replace(self.jobs[group], pending=pending, allocations=allocations)
            )
        self._changed.clear()

    def _end_allocation(self, allocation: str) -> None:
        """Remove a running allocation and the expected end, and free the slots.

        Raises KeyError for an allocation that does not run.
        """
        group = self._group_of.pop(allocation)
        self._ends.pop(allocation, None)
        self._adjust_capacity(self._running[group].pop(allocation).placements, -1)
        self._changed.add(group)

    def _adjust_capacity(self, places: Iterable[Placement], sign: int) -> None:
        """Take (`sign` 1) or free (`sign` -1) the slots of placements, and for 0 slots an auxiliary
        place (room for an allocation without slots).

        Slots of a draining agent vanish from its total when they are freed. Unknown agents are
        ignored.
        """
        for place in places:
            agent = self.agents.get(place.agent)
            if agent is None:
                continue
            if agent.draining:
                adjusted = replace(agent, total=agent.total - place.slots)
            elif place.slots:
                adjusted = replace(agent, free=agent.free - sign * place.slots)
            else:
                adjusted = replace(agent, aux_free=agent.aux_free - sign)
            self.agents[place.agent] = adjusted
