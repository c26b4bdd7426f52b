"""When each waiting job will start, if all goes as expected: the scheduler, run ahead of time."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from sys import maxsize

from control_plane.scheduling.model import (
    Capacity,
    Holding,
    Job,
    Place,
    Request,
    SchedulerRules,
    Start,
    summed,
)
from control_plane.scheduling.schedule import schedule

# Plans to make before what is left counts as unknown.
PLANS_MAX = 100


def expected_starts(
    jobs: Iterable[Job],
    agents: Iterable[Capacity],
    rules: SchedulerRules,
    *,
    now_ms: int,
    ends_ms: Mapping[str, int],
    run_ms: Mapping[int, int] | None = None,
    plans_max: int = PLANS_MAX,
) -> dict[int, int | None]:
    """When the next request of each waiting job starts, None where that cannot be told.

    `ends_ms`: when running allocations are expected to end; one that is not in it runs for ever, as
    does, once it starts, a request of a job that is not in `run_ms`, the expected time of a run. An
    end that has passed is expected now. Whoever is preempted leaves at once and waits again. At
    most `plans_max` plans are made.
    """
    pool = _Pool(jobs, agents, ends_ms, run_ms or {})
    expected: dict[int, int | None] = {
        group: None for group, job in pool.jobs.items() if job.pending
    }
    clock: int | None = now_ms
    for _ in range(plans_max):
        if clock is None or None not in expected.values():
            break
        plan = schedule(pool.jobs.values(), pool.agents.values(), rules, maxsize)
        for start in plan.starts:
            pool.start(start, clock)
            if expected.get(start.request.group, clock) is None:
                expected[start.request.group] = clock
        for victim in plan.victims:
            pool.preempt(victim.holding, clock)
        if not plan.victims:
            clock = pool.advance(clock)
        pool.settle()
    return expected


class _Pool:
    """A pool as time goes on in it."""

    def __init__(
        self,
        jobs: Iterable[Job],
        agents: Iterable[Capacity],
        ends_ms: Mapping[str, int],
        run_ms: Mapping[int, int],
    ) -> None:
        self.jobs = {job.group: summed(job) for job in jobs}
        self.agents = {agent.agent: agent for agent in agents}
        self._ends = dict(ends_ms)
        self._run_ms = run_ms
        self._left_ms: dict[str, int] = {}
        self._pending = {
            group: {r.allocation: r for r in job.pending} for group, job in self.jobs.items()
        }
        self._holdings = {
            group: {h.allocation: h for h in job.holdings} for group, job in self.jobs.items()
        }
        self._group_of = {name: group for group, held in self._holdings.items() for name in held}
        self._changed: set[int] = set()
        held = (one.start for job in self.jobs.values() for one in job.holdings)
        self._started = max(held, default=0)

    def start(self, start: Start, now_ms: int) -> None:
        """A request gets its places, until its run is over."""
        request = start.request
        group, allocation = request.group, request.allocation
        del self._pending[group][allocation]
        self._started += 1
        self._holdings[group][allocation] = Holding(
            allocation,
            request.slots,
            group,
            self._started,
            preemptible=request.preemptible,
            places=start.places,
        )
        self._group_of[allocation] = group
        self._changed.add(group)
        self._take(start.places, 1)
        run_ms = self._left_ms.pop(allocation, self._run_ms.get(group))
        if run_ms is not None:
            self._ends[allocation] = now_ms + run_ms

    def preempt(self, holding: Holding, now_ms: int) -> None:
        """An allocation leaves and waits again, last of its job, for the rest of its run."""
        group, job = holding.group, self.jobs[holding.group]
        if holding.allocation in self._ends:
            self._left_ms[holding.allocation] = self._ends[holding.allocation] - now_ms
        self._end(holding.allocation)
        ticket = f"{job.submitted_ms:015d}.~{len(self._pending[group]):012d}"
        self._pending[group][holding.allocation] = Request(
            holding.allocation,
            holding.slots,
            ticket,
            group,
            job.label,
            job.single_agent,
            holding.preemptible,
        )

    def advance(self, now_ms: int) -> int | None:
        """Ends what is expected to end next; when that is, None if nothing is."""
        running = {name: at for name, at in self._ends.items() if name in self._group_of}
        if not running:
            return None
        next_ms = max(now_ms, min(running.values()))
        for name, at in running.items():
            if at <= next_ms:
                self._end(name)
        return next_ms

    def settle(self) -> None:
        """Sums the jobs up anew."""
        for group in self._changed:
            pending = sorted(self._pending[group].values(), key=lambda one: one.ticket)
            holdings = tuple(self._holdings[group].values())
            self.jobs[group] = summed(replace(self.jobs[group], pending=pending, holdings=holdings))
        self._changed.clear()

    def _end(self, allocation: str) -> None:
        group = self._group_of.pop(allocation)
        self._ends.pop(allocation, None)
        self._take(self._holdings[group].pop(allocation).places, -1)
        self._changed.add(group)

    def _take(self, places: Iterable[Place], sign: int) -> None:
        for place in places:
            agent = self.agents.get(place.agent)
            if agent is None:
                continue
            if agent.draining:
                after = replace(agent, total=agent.total - place.slots)
            elif place.slots:
                after = replace(agent, free=agent.free - sign * place.slots)
            else:
                after = replace(agent, aux_free=agent.aux_free - sign)
            self.agents[place.agent] = after
