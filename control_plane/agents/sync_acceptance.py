"""The acceptance of an agent's sync: reports and logs are stored with the session, once each."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from control_plane.actors import addresses
from control_plane.actors.agent.actor import (
    SESSIONS,
    AgentState,
    DesiredAllocation,
    leases_partition,
)
from control_plane.actors.step import CommandRefused
from control_plane.agents.actor_states import ActorStateReader, ActorStates
from control_plane.agents.leases import renew_lease
from control_plane.agents.metric_rows import StoreSegment, merge_allocation
from control_plane.agents.report_contexts import find_announcing_trials, read_report_contexts
from control_plane.agents.reports import Report
from control_plane.agents.sessions import (
    AcceptedReports,
    LogChunk,
    Session,
    accept_logs,
    accept_reports,
    decode_session,
    forget_allocations,
    session_write,
)
from control_plane.engine.engine import Engine
from control_plane.state.table import (
    OPERATIONS_MAX,
    Conflict,
    InvalidCommit,
    Key,
    Put,
    Row,
    TableError,
    Write,
)

log = logging.getLogger(__name__)

SYNC_TRIES_MAX = 20
# A trial's mail must stay far below the maximum size of a row.
REPORTS_MAX = 1_000
"""The reports that one commit accepts."""
LOST_MAX = 30
"""The lost allocations that one call reports."""

StoreLog = Callable[[int, LogChunk], Put]
"""A function that stores a chunk of a trial's log and returns the write of the index row.

The arguments are the trial's id and the chunk.
"""


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """The request of an agent's sync. docs/agent-protocol.md describes the fields."""

    epoch: int
    """The number of the agent's session, which each enrolment increases."""
    known: tuple[str, ...] = ()
    """The names of the allocations that the agent has, running or exited: `TRIAL.EPOCH`."""
    reports: tuple[Report, ...] = ()
    """Lines of trials and of the agent, from about the last accepted offset on."""
    logs: tuple[LogChunk, ...] = ()
    """Parts of logs, from about the last accepted offset on."""
    call: int = 0
    """The number of the call within the session, 0 from agents that do not count calls."""


class SyncAcceptor:
    """The acceptance of syncs, and the states of actors after each acceptance.

    Threads may share an acceptor.

    Args:
        engine: the engine whose table has the rows of agents, trials and experiments.
        store_log: stores a chunk of a log.
        store_segment: stores the reports of a full row of metrics.
    """

    def __init__(self, engine: Engine, store_log: StoreLog, store_segment: StoreSegment) -> None:
        self._engine = engine
        self._store_log = store_log
        self._store_segment = store_segment
        self._state_reader = ActorStateReader(engine)

    def accept_request(
        self, agent: str, request: SyncRequest
    ) -> tuple[Session, AgentState, ActorStates]:
        """Accept the reports and logs of a request in a single commit, or split the request in
        halves.

        Halves are accepted one after the other, and split again where needed. The lease is renewed,
        and logs are stored. After each commit, the trials that got messages are advanced and rows
        of metrics are merged. Return the new session, the agent's state, and the states of the
        agent's trials and their experiments.

        Raises:
            CommandRefused: "not_found" for an unknown agent. "conflict" for an ended session
                (another epoch, the session's number) or a lost agent. "invalid" for too many
                writers of an allocation. "too_large" for a single report or chunk that no commit
                can store. "unavailable" after SYNC_TRIES_MAX conflicts with other calls of the
                agent.
            TableError, OSError: the state table or the object store failed.
        """
        halves = _split_request(request)
        for _ in range(SYNC_TRIES_MAX):
            (stored_state,), (row,) = self._engine.read_states_and_rows(
                (addresses.agent(agent),), (Key(SESSIONS, agent),)
            )
            state = check_agent_state(agent, stored_state, request.epoch)
            try:
                accepted = self._try_accept(agent, state, row, request)
            except Conflict:
                # Another call of this agent committed first; read the new offsets.
                continue
            except InvalidCommit as refused:
                if not halves:
                    raise CommandRefused(
                        "too_large", f"agent {agent} reported too much at once: {refused}"
                    ) from None
                accepted = None
            if accepted is not None:
                self._engine.advance_after_commit(accepted.receivers)
                self._merge_metric_rows(accepted.allocations_to_merge)
                return accepted.session, *self._read_heads(agent, state, request.epoch, accepted)
            for half in halves:
                result = self.accept_request(agent, half)
            return result
        raise CommandRefused("unavailable", f"agent {agent} is reporting from two places at once")

    def _read_heads(
        self, agent: str, before: AgentState, epoch: int, accepted: AcceptedReports
    ) -> tuple[AgentState, ActorStates]:
        """Read the states of the agent, of the agent's trials and of their experiments after the
        commit.

        Trials that the agent was assigned meanwhile are read too. If no trial got mail, the agent's
        state cannot have changed and is not read again: `before` is returned.

        Args:
            agent: the agent's id.
            before: the agent's state before the commit.
            epoch: the number of the request's session. If the agent is read again, the number is
                checked again.
            accepted: the outcome of the commit.

        Raises:
            CommandRefused: "not_found" or "conflict" if the session has ended meanwhile.
            TableError: the state table failed.
        """
        ids = [desired.trial_id for desired in before.desired]
        if not accepted.receivers:
            return before, self._state_reader.read_actor_states(ids)
        states = self._state_reader.read_actor_states(ids, agent)
        state = check_agent_state(agent, states.agent, epoch)
        new_ids = [
            allocation.trial_id
            for allocation in state.desired
            if allocation.trial_id not in states.trials
        ]
        return state, states | self._state_reader.read_actor_states(new_ids) if new_ids else states

    def _try_accept(
        self, agent: str, state: AgentState, row: Row | None, request: SyncRequest
    ) -> AcceptedReports | None:
        """Accept a request in a single commit and renew the lease. Return None if the request must
        be split.

        A request is split if it has too many reports or writes, or two log chunks of one gang. A
        request of one report or one chunk is never split. Before the commit, the lease is renewed,
        and full rows of metrics and large log chunks go into the object store. The commit writes
        the session, the rows and the mail to trials. Without a change of the session, nothing is
        committed. Chunks of allocations that are not assigned to the agent are acknowledged and
        discarded.

        Args:
            agent: the agent's id.
            state: the agent's state.
            row: the stored session, None without one.
            request: the request.

        Raises:
            Conflict: another call of the agent committed first, or another node's chunk came first.
            InvalidCommit: the commit is too large.
            CommandRefused: "conflict" for another epoch or a lost agent. "invalid" for too many
                writers of an allocation.
            TableError, OSError: the state table or the object store failed.
        """
        now_ms = self._engine.clock()
        old_session = decode_session(row)
        _check_epoch(agent, request.epoch, old_session.epoch)
        reports = (*request.reports, *_lost_allocation_reports(state, old_session, request))
        lease = Key(leases_partition(state.pool), agent)
        contexts, lease_row = read_report_contexts(
            self._engine, self._state_reader, state, reports, lease
        )
        renew_lease(self._engine.table, lease, lease_row, request.epoch, now_ms)
        other_trials = find_announcing_trials(self._engine, reports, contexts)
        accepted = accept_reports(agent, old_session, reports, contexts, now_ms, other_trials)
        session, chunks = accept_logs(accepted.session, request.logs)
        assigned = {f"{desired.trial_id}.{desired.epoch}": desired for desired in state.desired}
        session = forget_allocations(session, {*request.known, *assigned})
        too_long = (
            len(accepted.writes) + len(chunks) >= OPERATIONS_MAX or len(reports) > REPORTS_MAX
        )
        if (too_long or _has_colliding_chunks(chunks, assigned)) and _split_request(request):
            return None
        log_writes = [
            self._store_log_chunk(chunk, assigned[chunk.allocation], now_ms)
            for chunk in chunks
            if chunk.allocation in assigned
        ]
        if session != old_session:
            session = replace(session, call=max(old_session.call, request.call))
            report_writes = [self._store_full_segment(write) for write in accepted.writes]
            writes = [session_write(agent, session, row), *report_writes, *log_writes]
            self._engine.table.commit(writes)
        return accepted._replace(session=session)

    def _store_full_segment(self, write: Write) -> Write:
        """Move the reports of a full row of metrics into the object store, and return the write of
        the rest.

        Return other writes unchanged. Raises OSError if the store does not answer.
        """
        return self._store_segment(write) if isinstance(write, Put) else write

    def _merge_metric_rows(self, allocations: Iterable[str]) -> None:
        """Merge the rows of metrics of allocations.

        A failure of the state table or the object store is only logged, because a later merge
        includes the rows. A damaged row is only logged too, because the reports are accepted.
        """
        for allocation in allocations:
            epoch = int(allocation.partition(".")[2])
            try:
                merge_allocation(
                    self._engine.table, _trial_id(allocation), epoch, self._store_segment
                )
            except (TableError, OSError, ValueError) as error:
                log.info("metrics of %s were not merged: %s", allocation, error)

    def _store_log_chunk(self, chunk: LogChunk, desired: DesiredAllocation, now_ms: int) -> Write:
        """Store a log chunk with the node's rank. Return the write of the index row, which the
        caller commits.

        Text above 2 KiB goes into the object store at once. Raises OSError if the store does not
        answer, and TableError for a gang if the end of the shared log cannot be read.

        Args:
            chunk: the accepted chunk. A chunk without time marks counts as seen at `now_ms`.
            desired: the allocation, which is assigned to the agent.
            now_ms: the present time in epoch ms.
        """
        # Older agents send no times, so the text counts as seen now.
        marks = chunk.marks or ((chunk.offset, now_ms),)
        placed = replace(chunk, marks=marks, node_rank=desired.node_rank, nodes=desired.nodes)
        return self._store_log(desired.trial_id, placed)


def check_agent_state(agent: str, state: object, epoch: int) -> AgentState:
    """Return the agent's state after a check that the current session has this epoch, the session's
    number.

    Raises CommandRefused: "not_found" for an unknown agent, "conflict" for another epoch.
    """
    if not isinstance(state, AgentState):
        raise CommandRefused("not_found", f"there is no agent {agent}; enrol first")
    _check_epoch(agent, epoch, state.epoch)
    return state


def _trial_id(allocation: str) -> int:
    """Return the trial's id from the name of an allocation, `TRIAL.EPOCH`."""
    return int(allocation.partition(".")[0])


def _split_request(request: SyncRequest) -> tuple[SyncRequest, ...]:
    """Split a request into two requests that are accepted in this order.

    Several reports are halved, and the logs go with the second half. Otherwise several chunks are
    halved, and a single report goes with the first half. Return () for a request with at most one
    report and at most one chunk.
    """
    reports, logs = request.reports, request.logs
    if len(reports) > 1:
        middle = len(reports) // 2
        first = replace(request, reports=reports[:middle], logs=())
        return first, replace(request, reports=reports[middle:])
    if len(logs) > 1:
        middle = len(logs) // 2
        first = replace(request, logs=logs[:middle])
        return first, replace(request, reports=(), logs=logs[middle:])
    return ()


def _has_colliding_chunks(
    chunks: list[LogChunk], assigned: Mapping[str, DesiredAllocation]
) -> bool:
    """Return whether two chunks belong to a single gang, an allocation of several nodes.

    A gang's chunks are appended to the shared log, so both would get the same offset. Chunks of
    allocations that are not `assigned` are ignored.
    """
    gangs = [
        chunk.allocation
        for chunk in chunks
        if (desired := assigned.get(chunk.allocation)) is not None and desired.nodes > 1
    ]
    return len(set(gangs)) < len(gangs)


def _check_epoch(agent: str, epoch: int, current: int) -> None:
    """Raise CommandRefused ("conflict") unless the session's epoch is the current epoch."""
    if epoch != current:
        raise CommandRefused(
            "conflict", f"agent {agent} has enrolled again: session {epoch} is over"
        )


def _lost_allocation_reports(
    state: AgentState, session: Session, request: SyncRequest
) -> list[Report]:
    """Return exit reports for allocations that the agent has lost.

    A lost allocation has reported before, is assigned to the agent, has no accepted exit, and is
    not among the allocations that the agent has. At most `LOST_MAX` are reported; the next call
    finds the others. Return no reports for a call older than the last one that changed the session.
    Such a call does not list allocations that started later.
    """
    if request.call < session.call:
        return []
    lost = [
        Report(
            desired.trial_id,
            desired.epoch,
            "agent",
            session.acked[allocation].get("agent", 0) + 1,
            {"kind": "exited", "reason": "lost", "message": "the machine lost the allocation"},
        )
        for desired in state.desired
        if (allocation := f"{desired.trial_id}.{desired.epoch}") in session.acked
        # The agent may delete an exited allocation before the trial's state records the exit.
        and allocation not in (*request.known, *session.exited)
    ]
    return lost[:LOST_MAX]
