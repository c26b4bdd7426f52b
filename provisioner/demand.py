"""The books of the cluster's resource pools, as the provisioner sees them.

What is read may be of different moments: a pass that decides upon it writes nothing to the pool,
and what it misses it finds 5 s later.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from control_plane.actors import addresses
from control_plane.actors.agent import leases_of
from control_plane.actors.experiment_state import ExperimentState
from control_plane.actors.jobs import JobRow
from control_plane.actors.pool_messages import PoolSettings
from control_plane.actors.pool_state import POOLS, agents_of, settings_of, waiting_in
from control_plane.actors.slots import AgentSlots
from control_plane.actors.step import RowSeen, Turn
from control_plane.actors.waiting import Waiting
from control_plane.agents.draining import drain
from control_plane.agents.leases import BRAKE, mark_ended
from control_plane.dispatch.engine import Engine
from control_plane.fleet.rows import read_all
from control_plane.state.table import Conflict
from provisioner.model import AgentSeen, Demand, JobDemand, WorkDue
from provisioner.pools import Books
from provisioner.settings import provisioner_settings

BY = "provisioner"


class EnginePools:
    """The pools of an engine; see Pools."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def names(self) -> Sequence[str]:
        """The pools that have a provider."""
        names = (row.key.sort for row in read_all(self._engine.table, POOLS))
        return [name for name in names if settings_of(self._turn(name)).provider]

    def books(self, pool: str) -> Books:
        """See Pools. Raises SettingsInvalid for a provider that cannot be read."""
        leases = {
            row.key.sort: row.revision
            for row in read_all(self._engine.table, leases_of(pool))
            if row.key.sort != BRAKE
        }
        turn = self._turn(pool)
        settings = settings_of(turn)
        agents = {name: _seen(agent) for name, agent in agents_of(turn).items()}
        provider = provisioner_settings(settings.provider) if settings.provider else None
        if provider is not None and settings.over_budget:
            # Those that nothing runs on end, and no others come in their place.
            provider = replace(provider, min_instances=0)
        return Books(
            settings=provider,
            demand=demand_of(waiting_in(turn), settings, self._due),
            agents=agents,
            leases=leases,
        )

    def drain(self, agent: str) -> None:
        """See Pools."""
        drain(self._engine, agent, BY)

    def ended(self, pool: str, agent: str) -> None:
        """See Pools."""
        with suppress(Conflict):
            engine = self._engine
            mark_ended(engine.table, pool, agent, engine.clock(), engine.follow)

    def _due(self, number: int, row: JobRow) -> WorkDue | None:
        if row.deadline_ms is None:
            return None
        state: ExperimentState | None = self._engine.state(addresses.experiment(number))
        if state is None:
            return WorkDue(row.submitted_ms, row.deadline_ms)
        worked_ms = state.bill.worked_until_ms(self._engine.clock())
        return WorkDue(row.submitted_ms, row.deadline_ms, worked_ms, state.progress)

    def _turn(self, pool: str) -> Turn:
        address = addresses.pool(pool)
        return Turn(address, 0, _Parts(self._engine, address))


Due = Callable[[int, JobRow], WorkDue | None]
"""What is known of a job with a deadline, by its experiment."""


def demand_of(
    waiting: Waiting, settings: PoolSettings, due: Due = lambda number, row: None
) -> Demand:
    """What waits in a pool. Labelled work is left out: no agent of a provider has a label."""
    jobs = list(_jobs(waiting, due))
    held_back = ""
    if settings.draining:
        held_back = "the pool drains: nothing starts in it"
    elif settings.over_budget:
        held_back = "the pool's budget is used up"
    return Demand(
        jobs=tuple(job for job in jobs if job.sizes),
        zero_slot=sum(it.pending.get(0, 0) for _, it in waiting.groups() if not it.row.label),
        aux_per_agent=settings.aux_per_agent,
        held_back=held_back,
    )


def _jobs(waiting: Waiting, due: Due) -> Iterator[JobDemand]:
    for number, group in waiting.groups():
        row = group.row
        if row.label:
            continue
        room = None if row.max_slots is None else max(0, row.max_slots - group.held)
        sizes = {slots: count for slots, count in group.pending.items() if slots}
        yield JobDemand(sizes, room, row.single_agent, due(number, row) if sizes else None)


def _seen(agent: AgentSlots) -> AgentSeen:
    takes_work = agent.availability.enabled and agent.takes_work
    return AgentSeen(not agent.parts, takes_work, agent.held_count)


@dataclass(frozen=True, slots=True)
class _Parts:
    """Reads a pool's parts outside of a fold."""

    engine: Engine
    address: str

    def part(self, name: str) -> object | None:
        found: object | None = self.engine.part(self.address, name)
        return found

    def row(self, partition: str, sort: str) -> RowSeen:
        raise AssertionError(f"the books of a pool need no row {partition} / {sort}")
