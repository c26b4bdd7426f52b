"""A pool audits itself: its allocations against what their trials and agents say, its agents
against their leases.

No message is ever lost by the engine, so the audit finds nothing; it is there for what we did not
think of, dead letters among it. Whatever it mails is harmless if it comes late: an allocation is
freed, placed or removed by its epoch, and a wrong word is found by the next audit: an agent that
was lost while it was being told of is still marked in its lease.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from control_plane.actors import addresses
from control_plane.actors.agent import AgentState
from control_plane.actors.agent_messages import AllocationPlaced, AllocationRemoved
from control_plane.actors.pool import agents_of, parse_allocation, waiting_in
from control_plane.actors.pool_messages import (
    AgentAvailabilityChanged,
    AgentJoined,
    AgentLost,
    AuditFound,
    SlotsReleased,
)
from control_plane.actors.slots import AgentSlots
from control_plane.actors.step import RowSeen, Turn
from control_plane.actors.trial_state import TrialState
from control_plane.agents.leases import Lease, leases_in
from control_plane.dispatch.engine import Engine
from control_plane.scheduling.model import Request

# Allocations freed by one message: each may touch eight parts of the pool.
STALE_MAX = 8


@dataclass(frozen=True, slots=True)
class Holdings:
    """What a pool believes: who waits in it, and its agents. Beside it the leases, which say who
    they are.
    """

    queued: Sequence[Request]
    agents: Mapping[str, AgentSlots]
    leases: Mapping[str, Lease]


@dataclass(frozen=True, slots=True)
class Differences:
    """What to say to whom; `sessions` is for the pool too."""

    pool: AuditFound
    sessions: tuple[AgentJoined | AgentAvailabilityChanged | AgentLost, ...]
    agents: tuple[tuple[str, AllocationPlaced | AllocationRemoved], ...]


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
        for allocation, held in slots.running.items():
            trial_id, epoch = parse_allocation(allocation)
            if not _holds(trial(trial_id), epoch):
                group = slots.group_of(allocation)
                stale.append(SlotsReleased(trial_id, epoch, "", (name,), group))
            elif (trial_id, epoch) not in desired:
                said.append((name, AllocationPlaced(trial_id, epoch, held)))
        said += [
            (name, AllocationRemoved(trial_id, epoch))
            for trial_id, epoch in sorted(desired)
            if not _holds(trial(trial_id), epoch)
        ]
    sessions = tuple(_sessions(holdings, agent))
    return Differences(AuditFound(tuple(stale)), sessions, tuple(said))


def audit(engine: Engine, pool: str) -> Differences:
    """Audits one pool and mails what it finds."""
    found = differences(
        _holdings(engine, pool),
        lambda trial_id: engine.state(addresses.trial(trial_id)),
        lambda name: engine.state(addresses.agent(name)),
    )
    stale = found.pool.stale
    for first in range(0, len(stale), STALE_MAX):
        message = AuditFound(stale[first : first + STALE_MAX])
        engine.post(addresses.pool(pool), message, sender=f"audit#{pool}")
    for session in found.sessions:
        engine.post(addresses.pool(pool), session, sender=f"audit#{pool}")
    for name, word in found.agents:
        engine.post(addresses.agent(name), word, sender=f"audit#{pool}")
    return found


def _sessions(
    holdings: Holdings, agent: Callable[[str], AgentState | None]
) -> Iterator[AgentJoined | AgentAvailabilityChanged | AgentLost]:
    """Sessions that began or ended, and slots that were disabled, without the pool's knowledge."""
    for name, lease in holdings.leases.items():
        known = holdings.agents.get(name)
        state = agent(name)
        if lease.lost and known is not None and known.epoch == lease.epoch:
            yield AgentLost(name, lease.epoch, "it has not been heard of")
        elif not lease.lost and state is not None and state.epoch == lease.epoch:
            if known is None or known.epoch < lease.epoch:
                slots = tuple(slot[0] for slot in state.slots)
                yield AgentJoined(name, lease.epoch, slots, state.availability)
            elif known.epoch == lease.epoch and known.availability != state.availability:
                yield AgentAvailabilityChanged(name, lease.epoch, state.availability)


def _holds(trial: TrialState | None, epoch: int) -> bool:
    return trial is not None and trial.epoch == epoch and trial.allocation is not None


def _holdings(engine: Engine, pool: str) -> Holdings:
    turn = Turn(addresses.pool(pool), 0, _Parts(engine, addresses.pool(pool)))
    queued = tuple(waiting_in(turn).items())
    return Holdings(queued, dict(agents_of(turn).items()), leases_in(engine.table, pool))


@dataclass(frozen=True, slots=True)
class _Parts:
    """Reads a pool's parts outside a fold; they may be of different moments, which an audit
    survives.
    """

    engine: Engine
    address: str

    def part(self, name: str) -> object | None:
        found: object | None = self.engine.part(self.address, name)
        return found

    def row(self, partition: str, sort: str) -> RowSeen:
        raise AssertionError(f"an audit reads no row {partition} / {sort}")
