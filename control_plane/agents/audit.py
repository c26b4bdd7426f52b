"""A pool audits itself: its allocations against what their trials and agents say, its agents
against their leases, its jobs against their rows and experiments.

No message is ever lost by the engine, so the audit finds nothing; it is there for what we did not
think of, dead letters among it. Whatever it mails is harmless if it comes late: an allocation is
freed, placed or removed by its epoch, and a wrong word is found by the next audit: an agent that
was lost while it was being told of is still marked in its lease.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from control_plane.actors import addresses
from control_plane.actors.agent import AgentState
from control_plane.actors.agent_messages import AllocationPlaced, AllocationRemoved
from control_plane.actors.experiment_messages import JobAudited
from control_plane.actors.experiment_state import ExperimentState
from control_plane.actors.jobs import JobRow, job_sort, jobs_of, read_job
from control_plane.actors.pool_messages import (
    AgentAvailabilityChanged,
    AgentJoined,
    AgentLost,
    AuditFound,
    JobChanged,
    SlotsReleased,
)
from control_plane.actors.pool_state import agents_of, parse_allocation, waiting_in
from control_plane.actors.slots import AgentSlots, Part
from control_plane.actors.trial_state import TrialState
from control_plane.actors.waiting import Group
from control_plane.agents.leases import Lease, leases_in
from control_plane.dispatch.engine import Engine
from control_plane.dispatch.outside import looking_at
from control_plane.scheduling.model import Request

# Allocations freed by one message: each may touch eight parts of the pool.
STALE_MAX = 8


@dataclass(frozen=True, slots=True)
class Holdings:
    """What a pool believes: who waits in it, its agents and its jobs. Beside it the leases, which
    say who the agents are, and the rows of the jobs.
    """

    queued: Sequence[Request]
    agents: Mapping[str, AgentSlots]
    leases: Mapping[str, Lease]
    groups: Mapping[int, Group] = field(default_factory=dict)
    rows: Mapping[int, JobRow] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Differences:
    """What to say to whom; `sessions` and `jobs` are for the pool too. `experiments` are to put
    their jobs right.
    """

    pool: AuditFound
    sessions: tuple[AgentJoined | AgentAvailabilityChanged | AgentLost, ...]
    agents: tuple[tuple[str, AllocationPlaced | AllocationRemoved], ...]
    jobs: tuple[JobChanged, ...] = ()
    experiments: tuple[int, ...] = ()


def differences(
    holdings: Holdings,
    trial: Callable[[int], TrialState | None],
    agent: Callable[[str], AgentState | None],
) -> Differences:
    """Compares the pool's books with the trials' and the agents'."""
    stale: list[SlotsReleased] = []
    for request in holdings.queued:
        trial_id, epoch = parse_allocation(request.allocation)
        if not _holds(trial(trial_id), epoch):
            stale.append(SlotsReleased(trial_id, epoch, request.ticket, (), request.group))
    said: list[tuple[str, AllocationPlaced | AllocationRemoved]] = []
    for name, slots in holdings.agents.items():
        state = agent(name)
        desired = {(entry.trial_id, entry.epoch) for entry in state.desired} if state else set()
        for allocation, part in slots.parts.items():
            trial_id, epoch = parse_allocation(allocation)
            if not _holds(trial(trial_id), epoch):
                stale.append(SlotsReleased(trial_id, epoch, "", (name,), part.group))
            elif (trial_id, epoch) not in desired:
                node = _node(trial(trial_id), name, part)
                said.append((name, AllocationPlaced(trial_id, epoch, part.slots, *node)))
        said += [
            (name, AllocationRemoved(trial_id, epoch))
            for trial_id, epoch in sorted(desired)
            if not _holds(trial(trial_id), epoch)
        ]
    sessions = tuple(_sessions(holdings, agent))
    return Differences(AuditFound(tuple(stale)), sessions, tuple(said))


def with_jobs(
    found: Differences,
    pool: str,
    holdings: Holdings,
    experiment: Callable[[int], ExperimentState | None],
) -> Differences:
    """Compares the pool's jobs with their rows and experiments, too. A live experiment that has
    neither a row nor a job here asks for nothing; it is found once it does.
    """
    groups, rows = holdings.groups, holdings.rows
    wrong = [
        number
        for number in sorted({*groups, *rows})
        if (state := experiment(number)) is not None
        and (state.pool == pool and not state.status.final) != (number in rows)
    ]
    unheard = [
        JobChanged(number)
        for number in sorted({*groups, *rows})
        if not _is_known(groups.get(number), rows.get(number))
    ]
    return replace(found, jobs=tuple(unheard), experiments=tuple(wrong))


def audit(engine: Engine, pool: str) -> Differences:
    """Audits one pool and mails what it finds."""
    holdings = _holdings(engine, pool)
    found = differences(
        holdings,
        lambda trial_id: engine.state(addresses.trial(trial_id)),
        lambda name: engine.state(addresses.agent(name)),
    )
    found = with_jobs(
        found, pool, holdings, lambda number: engine.state(addresses.experiment(number))
    )
    stale = found.pool.stale
    for first in range(0, len(stale), STALE_MAX):
        message = AuditFound(stale[first : first + STALE_MAX])
        engine.post(addresses.pool(pool), message, sender=f"audit#{pool}")
    for word in (*found.sessions, *found.jobs):
        engine.post(addresses.pool(pool), word, sender=f"audit#{pool}")
    for number in found.experiments:
        engine.post(addresses.experiment(number), JobAudited(pool), sender=f"audit#{pool}")
    for name, placing in found.agents:
        engine.post(addresses.agent(name), placing, sender=f"audit#{pool}")
    return found


def _sessions(
    holdings: Holdings, agent: Callable[[str], AgentState | None]
) -> Iterator[AgentJoined | AgentAvailabilityChanged | AgentLost]:
    """Sessions that began or ended, and slots that were disabled, without the pool's knowledge."""
    for name, lease in holdings.leases.items():
        known = holdings.agents.get(name)
        state = agent(name)
        if lease.lost and known is not None and known.epoch == lease.epoch:
            yield AgentLost(name, lease.epoch, "it has not been heard of", lease.renewed_ms)
        elif not lease.lost and state is not None and state.epoch == lease.epoch:
            if known is None or known.epoch < lease.epoch:
                slots = tuple(slot[0] for slot in state.slots)
                yield AgentJoined(name, lease.epoch, slots, state.availability, state.label)
            elif known.epoch == lease.epoch and known.availability != state.availability:
                yield AgentAvailabilityChanged(name, lease.epoch, state.availability)


def _node(trial: TrialState | None, agent: str, part: Part) -> tuple[int, int]:
    """The rank of an allocation's part among its nodes, and how many these are."""
    agents = trial.allocation.agents if trial and trial.allocation else ()
    if agent in agents:
        return agents.index(agent), len(agents)
    return part.rank, max(1, len(part.places))


def _is_known(group: Group | None, row: JobRow | None) -> bool:
    """Whether the pool knows a job as its row says it."""
    if group is None or row is None:
        return row is None and group is not None and not (group.listed or group.idle)
    return group.listed and group.row == row


def _holds(trial: TrialState | None, epoch: int) -> bool:
    return trial is not None and trial.epoch == epoch and trial.allocation is not None


def _holdings(engine: Engine, pool: str) -> Holdings:
    turn = looking_at(engine, addresses.pool(pool))
    waiting = waiting_in(turn)
    return Holdings(
        tuple(waiting.items()),
        dict(agents_of(turn).items()),
        leases_in(engine.table, pool),
        dict(waiting.groups()),
        _rows(engine, pool),
    )


def _rows(engine: Engine, pool: str) -> dict[int, JobRow]:
    rows, first = dict[int, JobRow](), " "
    while page := engine.table.query(jobs_of(pool), first, "~").rows:
        rows |= {int(row.key.sort): read_job(row.body) for row in page}
        first = job_sort(max(rows) + 1)
    return rows
