"""The audit of a pool: a comparison of the pool's records with the records of other actors.

- Allocations are compared with the states of trials and agents.
- Agents are compared with leases.
- Jobs are compared with job rows and experiments.

The engine loses no messages, so an audit should find no differences. It corrects unforeseen faults,
such as dead letters. Its messages are harmless if they arrive late. Their receivers check the
epochs of allocations, and the next audit corrects a wrong message.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from control_plane.actors import addresses
from control_plane.actors.agent.actor import AgentState
from control_plane.actors.experiment.state import ExperimentState
from control_plane.actors.job_row import JobRow, decode_job, jobs_partition
from control_plane.actors.messages.agent import AllocationPlaced, AllocationRemoved
from control_plane.actors.messages.experiment import JobAudited
from control_plane.actors.messages.pool import (
    AgentAvailabilityChanged,
    AgentJoined,
    AgentLost,
    JobChanged,
    SlotsReleased,
    StaleAllocationsFound,
)
from control_plane.actors.pool.agent_slots import AgentSlots, AllocationPart
from control_plane.actors.pool.groups import Group
from control_plane.actors.pool.state import (
    CONTENT_FAMILIES,
    agents_of,
    job_queue_of,
    parse_allocation,
)
from control_plane.actors.trial.state import TrialState
from control_plane.agents.leases import Lease, read_leases
from control_plane.engine.engine import Engine
from control_plane.engine.read_only import ActorParts, read_only_context
from control_plane.scheduling.agent_needs import agent_kind
from control_plane.scheduling.model import AllocationRequest
from control_plane.state.row_ranges import read_rows

STALE_PER_MESSAGE_MAX = 8
"""The allocations that one message frees. Freeing one may change eight parts of the pool."""


@dataclass(frozen=True, slots=True)
class PoolRecords:
    """A pool's records, with the leases and job rows for comparison."""

    queued: Sequence[AllocationRequest]
    """The pool's waiting requests."""
    agents: Mapping[str, AgentSlots]
    """The pool's agents with their slots, by name."""
    leases: Mapping[str, Lease]
    """The leases of the pool's agents, by name."""
    groups: Mapping[int, Group] = field(default_factory=dict)
    """The pool's jobs, by experiment id."""
    rows: Mapping[int, JobRow] = field(default_factory=dict)
    """The job rows of the pool, by experiment id."""


@dataclass(frozen=True, slots=True)
class AuditFindings:
    """The messages that correct the differences that an audit found."""

    pool: StaleAllocationsFound
    """For the pool: allocations that no trial holds any more."""
    sessions: tuple[AgentJoined | AgentAvailabilityChanged | AgentLost, ...]
    """For the pool: agents that joined, were lost or changed without the pool's knowledge."""
    agents: tuple[tuple[str, AllocationPlaced | AllocationRemoved], ...]
    """For agents: the agent's name and an allocation to add or remove."""
    jobs: tuple[JobChanged, ...] = ()
    """For the pool: jobs whose rows differ from the pool's records."""
    experiments: tuple[int, ...] = ()
    """The ids of experiments that must write or delete their job rows."""


def find_differences(
    records: PoolRecords,
    read_trial: Callable[[int], TrialState | None],
    read_agent: Callable[[str], AgentState | None],
) -> AuditFindings:
    """Compare a pool's requests, allocations and agents with the states of trials and agents.

    Return the messages that correct the differences, except the messages about jobs. Nothing is
    sent. Without differences, the tuples of the result are empty.

    - A queued request or an allocation that its trial does not hold is stale.
    - An allocation on an agent must be among the agent's desired allocations, and the reverse.
    - The pool's record of an agent must agree with the agent's lease, session and availability.

    Args:
        records: the pool's records.
        read_trial: returns a trial's state by id, None for an unknown trial.
        read_agent: returns an agent's state by name, None for an unknown agent.
    """
    stale: list[SlotsReleased] = []
    for request in records.queued:
        trial_id, epoch = parse_allocation(request.allocation_id)
        if not _holds_allocation(read_trial(trial_id), epoch):
            stale.append(SlotsReleased(trial_id, epoch, request.ticket, (), request.group))
    agent_messages: list[tuple[str, AllocationPlaced | AllocationRemoved]] = []
    for name, slots in records.agents.items():
        state = read_agent(name)
        desired = {(entry.trial_id, entry.epoch) for entry in state.desired} if state else set()
        for allocation, part in slots.parts.items():
            trial_id, epoch = parse_allocation(allocation)
            if not _holds_allocation(read_trial(trial_id), epoch):
                stale.append(SlotsReleased(trial_id, epoch, "", (name,), part.group))
            elif (trial_id, epoch) not in desired:
                node = _node_rank(read_trial(trial_id), name, part)
                agent_messages.append((name, AllocationPlaced(trial_id, epoch, part.slots, *node)))
        agent_messages += [
            (name, AllocationRemoved(trial_id, epoch))
            for trial_id, epoch in sorted(desired)
            if not _holds_allocation(read_trial(trial_id), epoch)
        ]
    sessions = tuple(_session_messages(records, read_agent))
    return AuditFindings(StaleAllocationsFound(tuple(stale)), sessions, tuple(agent_messages))


def add_job_findings(
    findings: AuditFindings,
    pool: str,
    records: PoolRecords,
    read_experiment: Callable[[int], ExperimentState | None],
) -> AuditFindings:
    """Return `findings` with the differences between jobs, job rows and experiments. Nothing is
    sent.

    A job row must exist exactly while its experiment is in this pool and has not ended. The pool's
    record of a job must equal the row. An experiment without a job and without a row has requested
    no slots yet and is not checked. Earlier `jobs` and `experiments` of `findings` are replaced,
    and are empty without differences.

    Args:
        findings: the differences found so far.
        pool: the name of the pool.
        records: the pool's records.
        read_experiment: returns an experiment's state by id, None for an unknown experiment.
    """
    groups, rows = records.groups, records.rows
    wrong_experiments = [
        number
        for number in sorted({*groups, *rows})
        if (state := read_experiment(number)) is not None
        and (state.pool == pool and not state.status.is_final) != (number in rows)
    ]
    unknown_jobs = [
        JobChanged(number)
        for number in sorted({*groups, *rows})
        if not _is_job_known(groups.get(number), rows.get(number))
    ]
    return replace(findings, jobs=tuple(unknown_jobs), experiments=tuple(wrong_experiments))


def audit_pool(engine: Engine, pool: str) -> AuditFindings:
    """Audit a pool, mail the corrections to the pool, agents and experiments, and return the
    messages.

    Each receiver is advanced after its message. Without differences, nothing is sent. A pool that
    does not exist has no records, but leases and job rows in its partitions are compared. Raises
    TableError; some messages may be sent already.
    """
    records = _load_pool_records(engine, pool)
    findings = find_differences(
        records,
        lambda trial_id: engine.read_state(addresses.trial(trial_id)),
        lambda name: engine.read_state(addresses.agent(name)),
    )
    findings = add_job_findings(
        findings, pool, records, lambda number: engine.read_state(addresses.experiment(number))
    )
    stale = findings.pool.stale
    for first in range(0, len(stale), STALE_PER_MESSAGE_MAX):
        released = StaleAllocationsFound(stale[first : first + STALE_PER_MESSAGE_MAX])
        engine.post_message(addresses.pool(pool), released, sender=f"audit#{pool}")
    for message in (*findings.sessions, *findings.jobs):
        engine.post_message(addresses.pool(pool), message, sender=f"audit#{pool}")
    for number in findings.experiments:
        engine.post_message(addresses.experiment(number), JobAudited(pool), sender=f"audit#{pool}")
    for name, change in findings.agents:
        engine.post_message(addresses.agent(name), change, sender=f"audit#{pool}")
    return findings


def _session_messages(
    records: PoolRecords, agent: Callable[[str], AgentState | None]
) -> Iterator[AgentJoined | AgentAvailabilityChanged | AgentLost]:
    """Yield messages about sessions and disabled slots that the pool's records do not show.

    - AgentLost: the lease is marked as lost, and the pool still has the session.
    - AgentJoined: the pool lacks the agent, or has an older session.
    - AgentAvailabilityChanged: the agent's slots that accept work differ.

    A live lease is skipped if the agent's state is missing or has another session.

    Args:
        agent: returns an agent's state by name, None for an unknown agent.
    """
    for name, lease in records.leases.items():
        recorded = records.agents.get(name)
        state = agent(name)
        if lease.lost and recorded is not None and recorded.epoch == lease.epoch:
            yield AgentLost(name, lease.epoch, "it has not been heard of", lease.renewed_ms)
        elif not lease.lost and state is not None and state.epoch == lease.epoch:
            if recorded is None or recorded.epoch < lease.epoch:
                slots = tuple(slot[0] for slot in state.slots)
                kind = agent_kind(state.slots, state.memory_mib, state.only_user)
                yield AgentJoined(
                    name, lease.epoch, slots, state.effective_availability, state.label, kind
                )
                continue
            availability = state.effective_availability
            if recorded.epoch == lease.epoch and recorded.availability != availability:
                yield AgentAvailabilityChanged(name, lease.epoch, availability)


def _node_rank(trial: TrialState | None, agent: str, part: AllocationPart) -> tuple[int, int]:
    """Return the rank of the agent among the allocation's nodes, and the number of nodes.

    If the trial's allocation does not have the agent, use the pool's record of the allocation.
    """
    agents = trial.allocation.agents if trial and trial.allocation else ()
    if agent in agents:
        return agents.index(agent), len(agents)
    return part.rank, max(1, len(part.places))


def _is_job_known(group: Group | None, row: JobRow | None) -> bool:
    """Return whether the pool's record of a job agrees with the job's row.

    Without a row, the job must be recorded without a row and must hold or request slots.
    """
    if group is None or row is None:
        return row is None and group is not None and not (group.has_row or group.is_idle)
    return group.has_row and group.row == row


def _holds_allocation(trial: TrialState | None, epoch: int) -> bool:
    """Return whether the trial exists and holds the allocation of this epoch, the allocation's
    number within the trial.
    """
    return trial is not None and trial.epoch == epoch and trial.allocation is not None


def _load_pool_records(engine: Engine, pool: str) -> PoolRecords:
    """Read a pool's records, leases and job rows. Raises TableError."""
    address = addresses.pool(pool)
    parts = ActorParts(engine, address, CONTENT_FAMILIES)
    context = read_only_context(engine, address, parts)
    queue = job_queue_of(context)
    return PoolRecords(
        tuple(queue.all_requests()),
        dict(agents_of(context).items()),
        read_leases(engine.table, pool),
        dict(queue.groups()),
        _read_job_rows(engine, pool),
    )


def _read_job_rows(engine: Engine, pool: str) -> dict[int, JobRow]:
    """Read the job rows of a pool, by experiment id. Raises TableError."""
    rows = read_rows(engine.table, jobs_partition(pool), " ", "~")
    return {int(row.key.sort): decode_job(row.body) for row in rows}
