"""The provisioner's view of the cluster's resource pools, read from the engine.

The rows of one snapshot may be read at different moments. The next pass, 5 s later, corrects
decisions that this causes.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from control_plane.actors import addresses
from control_plane.actors.agent.actor import leases_partition
from control_plane.actors.job_row import POOLS, JobRow
from control_plane.actors.messages.pool import PoolSettings, SupplyChecked
from control_plane.actors.pool.agent_kinds import RefusedKinds
from control_plane.actors.pool.agent_slots import AgentSlots
from control_plane.actors.pool.groups import Group
from control_plane.actors.pool.job_queue import JobQueue
from control_plane.actors.pool.state import PoolState, agents_of, job_queue_of, settings_of
from control_plane.actors.step import ObservedRow, StepContext
from control_plane.agents.draining import drain_agent
from control_plane.agents.leases import (
    LOSS_DETECTION_SORT,
    holds_for_outage,
    is_live_lease,
    mark_ended_agent,
)
from control_plane.engine.engine import Engine
from control_plane.scheduling.agent_needs import AgentNeeds
from control_plane.scheduling.model import ANY_KIND
from control_plane.scheduling.quiet_hours import (
    is_held_back,
    moment_text,
    period_at,
    quiet_end_ms,
)
from control_plane.scheduling.reservations import OverdueSize, overdue_sizes
from control_plane.state.row_ranges import read_rows
from control_plane.state.table import Conflict
from provisioner.model import ConnectedAgent, DeadlineProgress, Demand, JobDemand
from provisioner.pools import PoolSnapshot
from provisioner.settings import parse_provider_settings

# This import slows cold starts and is needed only for deadlines (bench/gcp_cold_starts.py).
if TYPE_CHECKING:
    from control_plane.actors.experiment.state import ExperimentState

DRAINED_BY = "provisioner"


class EnginePools:
    """The resource pools of a cluster's engine, an implementation of Pools."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def pool_names(self) -> Sequence[str]:
        """Return the names of the pools that have a provider, sorted. Reads each pool's settings.

        Raises TableError.
        """
        names = (row.key.sort for row in read_rows(self._engine.table, POOLS))
        return [name for name in names if settings_of(self._pool_context(name)).provider]

    def pool_snapshot(self, pool: str) -> PoolSnapshot:
        """Return a pool's current state, read from the state table.

        The snapshot of an unknown pool has no settings, demand or agents. `settings` is None for a
        pool without a provider. In the settings of a pool that drains, is over its budget or has
        quiet hours, `min_instances` is 0. `demand` has a hold reason in these cases. The leases are
        read before the agents. Nothing is written.

        Raises:
            SettingsInvalid: the pool's provider section is unusable.
            TableError: the state cannot be read.
        """
        rows = {row.key.sort: row for row in read_rows(self._engine.table, leases_partition(pool))}
        loss_detection = rows.pop(LOSS_DETECTION_SORT, None)
        context, now_ms = self._pool_context(pool), self._engine.clock()
        settings = settings_of(context)
        agents = {name: _connected_agent(agent) for name, agent in agents_of(context).items()}
        provider = parse_provider_settings(settings.provider) if settings.provider else None
        is_quiet = period_at(settings.quiet_periods, now_ms) is not None
        if provider is not None and (settings.draining or settings.over_budget or is_quiet):
            # Idle instances end and are not replaced.
            provider = replace(provider, min_instances=0)
        return PoolSnapshot(
            settings=provider,
            demand=pool_demand(
                job_queue_of(context),
                settings,
                now_ms,
                self._deadline_progress,
                UnfitAgents(context),
            ),
            agents=agents,
            leases={name: row.revision for name, row in rows.items()},
            joining=frozenset(
                name for name, row in rows.items() if name not in agents and is_live_lease(row)
            ),
            api_down=holds_for_outage(loss_detection),
        )

    def drain_agent(self, agent: str, ends_ms: int | None = None) -> None:
        """Drain an agent in the name of the provisioner, by a command to the agent's actor.

        The agent gets no new work and finishes the current work. The pool is notified, and the
        agent gets the end `ends_ms` (epoch ms) of the machine with the answer to the next call. The
        refusal for a lost or unknown agent is only logged. A repeated call with the same time
        `ends_ms` writes nothing. A repeated call without a time repeats the command, which changes
        nothing. Raises TableError if the state cannot be read or written.
        """
        drain_agent(self._engine, agent, DRAINED_BY, ends_ms)

    def report_supply(self, pool: str, closed: str, until_ms: int) -> None:
        """Post a change of the pool's supply to the pool's actor, and advance the actor.

        Do nothing if the pool's state has these values already, or if the pool is removed or
        unknown. Do nothing also if neither `closed` nor the state has a reason. Raises TableError
        if the state cannot be read or written.

        Args:
            pool: the pool's name.
            closed: the reason why the pool gets no instances, or "" if it may get some.
            until_ms: the time of the next launch attempt in epoch ms, or 0.
        """
        engine, address = self._engine, addresses.pool(pool)
        state: PoolState | None = engine.read_state(address)
        if state is None or state.removed or not (closed or state.no_supply_reason):
            return
        if (state.no_supply_reason, state.no_supply_until_ms) != (closed, until_ms):
            message = SupplyChecked(closed, until_ms)
            engine.post_message(address, message, sender=f"supply#{pool}")

    def end_agent(self, pool: str, agent: str) -> None:
        """Mark an agent's lease as ended in the state table, then run the pool's actor until idle.

        The work on the agent is lost at once: the pool does not wait for the lease to lapse. Do
        nothing if the agent has no lease or is already marked. If the agent calls meanwhile, the
        conflict is ignored, and the agent stays unmarked unless the caller repeats the call. Raises
        other TableErrors.
        """
        with suppress(Conflict):
            engine = self._engine
            mark_ended_agent(engine.table, pool, agent, engine.clock(), engine.advance_until_idle)

    def _deadline_progress(self, number: int, row: JobRow) -> DeadlineProgress | None:
        """Return the deadline, worked time and completed share of the job of experiment `number`.

        Return None if the row has no deadline. If the experiment has no state, the worked time is 0
        and the completed share is None. Raises TableError if the state cannot be read.
        """
        if row.deadline_ms is None:
            return None
        state: ExperimentState | None = self._engine.read_state(addresses.experiment(number))
        if state is None:
            return DeadlineProgress(row.submitted_ms, row.deadline_ms)
        worked_ms = state.bill.worked_time_ms(self._engine.clock())
        return DeadlineProgress(row.submitted_ms, row.deadline_ms, worked_ms, state.progress)

    def _pool_context(self, pool: str) -> StepContext:
        """Return a context for reading a pool's parts, the separately stored pieces of the state.

        Nothing is read yet, and nothing is ever written. Reading a part raises TableError if the
        table fails. An unknown pool has no parts: each part is None. Reading another row raises
        AssertionError.
        """
        address = addresses.pool(pool)
        return StepContext(address, 0, _PartReader(self._engine, address))


DeadlineLookup = Callable[[int, JobRow], DeadlineProgress | None]
"""Returns a job's deadline and progress, given its experiment's number and its row.

Returns None for a job without a deadline.
"""


class UnfitAgents:
    """The agents of a pool that do not meet needs. The agents are read on first use."""

    def __init__(self, context: StepContext) -> None:
        self._context = context
        self._refused_kinds = RefusedKinds(context)

    def __call__(self, needs: AgentNeeds) -> frozenset[str]:
        """Return the ids of the agents that do not meet the needs."""
        refused = self._refused_kinds(needs)
        if not refused:
            return frozenset()
        agents = agents_of(self._context).items()
        return frozenset(name for name, agent in agents if agent.kind in refused)


def pool_demand(
    queue: JobQueue,
    settings: PoolSettings,
    now_ms: int,
    find_deadline: DeadlineLookup = lambda number, row: None,
    unfit_agents: Callable[[AgentNeeds], frozenset[str]] = lambda needs: frozenset(),
) -> Demand:
    """Return the pending work of a pool.

    Leave out jobs with an agent label, since a provider's agents have no labels.

    - `jobs`: the jobs with pending requests for slots.
    - `zero_slot_requests`: the number of zero-slot requests of all jobs.
    - `hold_reason`: set if the pool drains or is over its budget. The work is included also then.
      In quiet hours, only the work of urgent jobs is included, if there is any. Otherwise the
      reason names the quiet hours.
    - `overdue`: the sizes of multi-slot requests that have waited for the pool's
      `reserve_after_ms`, of jobs that hold no slots; () without this limit.

    `find_deadline` is called for each job that has pending slots, and its errors are passed on.
    `unfit_agents` returns the ids of the agents that do not meet needs.
    """
    # The groups are read once: each row that a tick reads costs money.
    groups, quiet = _startable_groups(list(queue.groups()), settings, now_ms)
    jobs = list(_job_demands(queue, groups, find_deadline, unfit_agents))
    has_pending = any(job.pending_slots for job in jobs)
    return Demand(
        jobs=tuple(job for job in jobs if job.pending_slots),
        zero_slot_requests=sum(
            group.pending.get(0, 0) for _, group in groups if not group.row.label
        ),
        aux_per_agent=settings.aux_per_agent,
        hold_reason=_hold_reason(settings) or quiet,
        overdue=_overdue_sizes(queue, settings, now_ms) if has_pending else (),
    )


def _startable_groups(
    groups: list[tuple[int, Group]], settings: PoolSettings, now_ms: int
) -> tuple[list[tuple[int, Group]], str]:
    """Return the groups with startable work, and why the work gets no instances in quiet hours.

    Outside of quiet hours, return all groups and "". In quiet hours with requests of urgent jobs,
    return the groups of these jobs and "". Otherwise return all groups with the reason.
    """
    period = period_at(settings.quiet_periods, now_ms)
    end_ms = quiet_end_ms(settings.quiet_periods, now_ms)
    if period is None or end_ms is None:
        return groups, ""
    urgent = [
        (number, group)
        for number, group in groups
        if not is_held_back(period, group.priority_or(settings.default_priority))
    ]
    if any(group.pending for _, group in urgent):
        return urgent, ""
    return groups, f"the pool has quiet hours until {moment_text(end_ms)}"


def _hold_reason(settings: PoolSettings) -> str:
    """Return why a pool's pending work gets no instances, for users.

    Return "" unless the pool drains or is over its budget. Draining precedes the budget.
    """
    if settings.draining:
        return "the pool is draining: nothing starts in it"
    return "the pool's budget is used up" if settings.over_budget else ""


def _overdue_sizes(queue: JobQueue, settings: PoolSettings, now_ms: int) -> tuple[OverdueSize, ...]:
    """Return the sizes of overdue requests: requests for several slots that have waited too long.

    The pool's `reserve_after_ms` is the limit. Only requests of jobs that hold no slots and have no
    agent label count. Each size is returned once, in the order in which the scheduler reserves
    slots. Return () if the pool has no limit, in quiet hours, or if no request is overdue.
    """
    if settings.reserve_after_ms is None or period_at(settings.quiet_periods, now_ms):
        return ()
    jobs = queue.jobs(settings.default_priority, lambda group: iter(()), lambda needs: ANY_KIND)
    unlabelled = (job for job in jobs if not job.label)
    return overdue_sizes(unlabelled, settings.scheduler, now_ms - settings.reserve_after_ms)


def _job_demands(
    queue: JobQueue,
    groups: Iterable[tuple[int, Group]],
    find_deadline: DeadlineLookup,
    unfit_agents: Callable[[AgentNeeds], frozenset[str]],
) -> Iterator[JobDemand]:
    """Yield the pending work of each job without an agent label.

    Zero-slot requests are left out. A job without any other pending request is included, with empty
    `pending_slots`. A job's requests that exclude the same agents are a separate demand. `groups`
    has each job's experiment number and group. `find_deadline` is called only for jobs with pending
    slots, and its errors are passed on.
    """
    for number, group in groups:
        row = group.row
        if row.label:
            continue
        remaining = None if row.max_slots is None else max(0, row.max_slots - group.held)
        sizes = {slots: count for slots, count in group.pending.items() if slots}
        deadline = find_deadline(number, row) if sizes else None
        excluding = _excluding_requests(queue, number) if group.excluding else {}
        unfit = unfit_agents(row.needs) if sizes else frozenset()
        whole = JobDemand(
            {},
            remaining,
            row.single_agent,
            deadline,
            excluded_agents=tuple(sorted(unfit)),
            needs=row.needs,
            unfit_agents=unfit,
        )
        for excluded, requests in excluding.items():
            counts = Counter(group.scheduled_requests(requests))
            sizes = dict(Counter(sizes) - requests)
            names = tuple(sorted(unfit.union(excluded)))
            yield replace(whole, pending_slots=counts, excluded_agents=names)
        yield replace(whole, pending_slots=group.scheduled_requests(sizes))


def _excluding_requests(queue: JobQueue, group: int) -> dict[tuple[str, ...], Counter[int]]:
    """Return the number of the group's requests by size, for each set of excluded agents.

    Requests that exclude no agent, and requests without slots, are left out.
    """
    counts: dict[tuple[str, ...], Counter[int]] = {}
    for request in queue.requests(group):
        if request.excluded_agents and request.slots:
            excluded = tuple(sorted({*request.excluded_agents}))
            counts.setdefault(excluded, Counter())[request.slots] += 1
    return counts


def _connected_agent(agent: AgentSlots) -> ConnectedAgent:
    """Return the provisioner's view of an agent of the pool: work, free slots, availability.

    The agent is idle without allocations, zero-slot ones included. The agent takes work if it is
    enabled and any slot is open; an agent without slots takes zero-slot work. An agent that takes
    no work because of faults or exclusions is not closed. `work` has the slots on this agent only,
    also for an allocation on several agents.
    """
    takes_work = agent.availability.enabled and agent.can_take_work
    work = tuple(len(part.slots) for part in agent.parts.values())
    is_closed = agent.availability.is_closed_by_user
    return ConnectedAgent(not agent.parts, takes_work, work, agent.free_count, is_closed)


@dataclass(frozen=True, slots=True)
class _PartReader:
    """A reader of a pool's parts, outside the steps of the pool's actor."""

    engine: Engine
    address: str

    def part(self, name: str) -> object | None:
        """Return the named part of the pool. Return None if it is missing. Raises TableError."""
        part: object | None = self.engine.read_part(self.address, name)
        return part

    def row(self, partition: str, sort: str) -> ObservedRow:
        """Raise AssertionError: a pool's snapshot reads parts only."""
        raise AssertionError(f"a snapshot of a pool needs no row {partition} / {sort}")
