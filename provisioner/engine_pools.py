"""The cluster's resource pools, read from its engine.

What is read may be of different moments: a pass that decides upon it writes nothing to the pool,
and corrects what it missed 5 s later.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from control_plane.actors import addresses
from control_plane.actors.agent.actor import leases_partition
from control_plane.actors.job_row import POOLS, JobRow
from control_plane.actors.messages.pool import PoolSettings, SupplyChecked
from control_plane.actors.pool.agent_slots import AgentSlots
from control_plane.actors.pool.job_queue import Group, JobQueue
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
from control_plane.fleet.rows import read_rows
from control_plane.scheduling.reservations import OverdueSize, overdue_sizes
from control_plane.state.table import Conflict
from provisioner.model import ConnectedAgent, DeadlineProgress, Demand, JobDemand
from provisioner.pools import PoolSnapshot
from provisioner.settings import parse_provider_settings

# Only pools whose jobs have deadlines are asked for experiments (bench/gcp_cold_starts.py).
if TYPE_CHECKING:
    from control_plane.actors.experiment.state import ExperimentState

DRAINED_BY = "provisioner"


class EnginePools:
    """The Pools of an engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def pool_names(self) -> Sequence[str]:
        """The names of the pools that have a provider."""
        names = (row.key.sort for row in read_rows(self._engine.table, POOLS))
        return [name for name in names if settings_of(self._pool_context(name)).provider]

    def pool_snapshot(self, pool: str) -> PoolSnapshot:
        """Return a pool's current state. Raises SettingsInvalid for an unusable provider."""
        rows = {row.key.sort: row for row in read_rows(self._engine.table, leases_partition(pool))}
        loss_detection = rows.pop(LOSS_DETECTION_SORT, None)
        context = self._pool_context(pool)
        settings = settings_of(context)
        agents = {name: _connected_agent(agent) for name, agent in agents_of(context).items()}
        provider = parse_provider_settings(settings.provider) if settings.provider else None
        if provider is not None and settings.over_budget:
            # Those that nothing runs on end, and no others come in their place.
            provider = replace(provider, min_instances=0)
        return PoolSnapshot(
            settings=provider,
            demand=pool_demand(
                job_queue_of(context), settings, self._engine.clock(), self._deadline_progress
            ),
            agents=agents,
            leases={name: row.revision for name, row in rows.items()},
            joining=frozenset(
                name for name, row in rows.items() if name not in agents and is_live_lease(row)
            ),
            api_down=holds_for_outage(loss_detection),
        )

    def drain_agent(self, agent: str, ends_ms: int | None = None) -> None:
        """Make an agent take no new work, and tell it when its machine ends."""
        drain_agent(self._engine, agent, DRAINED_BY, ends_ms)

    def report_supply(self, pool: str, closed: str, until_ms: int) -> None:
        """Report why the pool gets no instances before then, if it does not know that already."""
        engine, address = self._engine, addresses.pool(pool)
        state: PoolState | None = engine.read_state(address)
        if state is None or state.removed or not (closed or state.closed):
            return
        if (state.closed, state.closed_until_ms) != (closed, until_ms):
            message = SupplyChecked(closed, until_ms)
            engine.post_message(address, message, sender=f"supply#{pool}")

    def end_agent(self, pool: str, agent: str) -> None:
        """Report that the agent's machine has ended."""
        with suppress(Conflict):
            engine = self._engine
            mark_ended_agent(engine.table, pool, agent, engine.clock(), engine.advance_until_idle)

    def _deadline_progress(self, number: int, row: JobRow) -> DeadlineProgress | None:
        if row.deadline_ms is None:
            return None
        state: ExperimentState | None = self._engine.read_state(addresses.experiment(number))
        if state is None:
            return DeadlineProgress(row.submitted_ms, row.deadline_ms)
        worked_ms = state.bill.worked_time_ms(self._engine.clock())
        return DeadlineProgress(row.submitted_ms, row.deadline_ms, worked_ms, state.progress)

    def _pool_context(self, pool: str) -> StepContext:
        address = addresses.pool(pool)
        return StepContext(address, 0, _PartReader(self._engine, address))


DeadlineLookup = Callable[[int, JobRow], DeadlineProgress | None]
"""What is known of a job with a deadline, by its experiment."""


def pool_demand(
    queue: JobQueue,
    settings: PoolSettings,
    now_ms: int,
    find_deadline: DeadlineLookup = lambda number, row: None,
) -> Demand:
    """Sum up the pending work of a pool. Labelled work is left out: agents of a provider have no
    labels.
    """
    # Read once: a tick without work is paid for by the row.
    groups = list(queue.groups())
    jobs = list(_job_demands(groups, find_deadline))
    has_pending = any(job.pending_slots for job in jobs)
    hold_reason = ""
    if settings.draining:
        hold_reason = "the pool is draining: nothing starts in it"
    elif settings.over_budget:
        hold_reason = "the pool's budget is used up"
    return Demand(
        jobs=tuple(job for job in jobs if job.pending_slots),
        zero_slot_requests=sum(
            group.pending.get(0, 0) for _, group in groups if not group.row.label
        ),
        aux_per_agent=settings.aux_per_agent,
        hold_reason=hold_reason,
        overdue=_overdue_sizes(queue, settings, now_ms) if has_pending else (),
    )


def _overdue_sizes(queue: JobQueue, settings: PoolSettings, now_ms: int) -> tuple[OverdueSize, ...]:
    if settings.reserve_after_ms is None:
        return ()
    jobs = queue.jobs(settings.default_priority, lambda group: iter(()))
    unlabelled = (job for job in jobs if not job.label)
    return overdue_sizes(unlabelled, settings.scheduler, now_ms - settings.reserve_after_ms)


def _job_demands(
    groups: Iterable[tuple[int, Group]], find_deadline: DeadlineLookup
) -> Iterator[JobDemand]:
    for number, group in groups:
        row = group.row
        if row.label:
            continue
        room = None if row.max_slots is None else max(0, row.max_slots - group.held)
        sizes = {slots: count for slots, count in group.pending.items() if slots}
        yield JobDemand(
            sizes, room, row.single_agent, find_deadline(number, row) if sizes else None
        )


def _connected_agent(agent: AgentSlots) -> ConnectedAgent:
    takes_work = agent.availability.enabled and agent.can_take_work
    work = tuple(len(part.slots) for part in agent.parts.values())
    return ConnectedAgent(not agent.parts, takes_work, work, agent.free_count)


@dataclass(frozen=True, slots=True)
class _PartReader:
    """Reads a pool's parts outside of a fold."""

    engine: Engine
    address: str

    def part(self, name: str) -> object | None:
        found: object | None = self.engine.read_part(self.address, name)
        return found

    def row(self, partition: str, sort: str) -> ObservedRow:
        raise AssertionError(f"a snapshot of a pool needs no row {partition} / {sort}")
