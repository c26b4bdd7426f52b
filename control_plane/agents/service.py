"""The service behind an agent's two calls, enrol and sync."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

from control_plane.actors import addresses
from control_plane.actors.agent.actor import (
    SESSIONS,
    AgentState,
    DesiredAllocation,
    leases_partition,
)
from control_plane.actors.experiment.state import Definition, ExperimentState
from control_plane.actors.messages.agent import LOOPBACK, AgentEnrolled
from control_plane.actors.step import CommandRefused
from control_plane.actors.trial.state import TrialState
from control_plane.agents.actor_states import ActorStateReader, ActorStates
from control_plane.agents.desired_state import SpecBuilder, TrialSource, desired_entries
from control_plane.agents.failed_syncs import FailedSyncs
from control_plane.agents.identity import is_active_row
from control_plane.agents.leases import LEASE_MS, renew_lease
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
    read_metadata_of,
    session_write,
)
from control_plane.engine.engine import Engine
from control_plane.engine.experiment_reader import ExperimentReader
from control_plane.fleet.records import instances_partition
from control_plane.state.table import (
    OPERATIONS_MAX,
    Check,
    Conflict,
    Expect,
    InvalidCommit,
    Key,
    Put,
    Row,
    TableError,
    Write,
)

log = logging.getLogger(__name__)

ENROL_TRIES_MAX = 20
SYNC_TRIES_MAX = 20
# A trial's mail must stay far below the maximum size of a row.
REPORTS_MAX = 1_000
"""The reports that one commit accepts."""
LOST_MAX = 30
"""The lost allocations that one call reports."""

StoreLog = Callable[[int, LogChunk], Put]
"""A function that stores a chunk of a trial's log and returns the write of the index row."""


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """The request of an agent's sync. docs/agent-protocol.md describes the fields."""

    epoch: int
    """The epoch of the agent's session."""
    known: tuple[str, ...] = ()
    """The allocations that the agent has."""
    reports: tuple[Report, ...] = ()
    logs: tuple[LogChunk, ...] = ()
    call: int = 0
    """The number of the call within the session, 0 from agents that do not count calls."""


@dataclass(frozen=True, slots=True)
class SyncResponse:
    """The response to an agent's sync."""

    acked: Mapping[str, Mapping[str, int]]
    """For each allocation that the agent has, the bytes accepted of each writer's reports."""
    logs_acked: Mapping[str, int]
    """For each allocation that the agent has, the bytes accepted of its log."""
    revision: int
    """The revision of the agent's state."""
    desired: list[dict[str, Any]] = field(default_factory=list)
    """The entries of the agent's desired state."""
    trials: Mapping[int, TrialState | None] = field(default_factory=dict)
    """The states of the trials that the response was built from, None for a trial that does not
    exist.
    """
    experiments: Mapping[int, ExperimentState] = field(default_factory=dict)
    """The experiments of `trials`, by id."""
    lease_ms: int = LEASE_MS
    ends_ms: int | None = None
    """When the cloud takes the agent's machine away (epoch ms), None if unknown."""


class AgentService:
    """The implementation of the calls of agents.

    Args:
        build_spec: builds the spec of a trial.
        store_log: stores a chunk of a log.
        store_segment: stores the reports of a full row of metrics.
        experiments: the reader of experiments. None for a reader that no other object uses.
    """

    def __init__(
        self,
        engine: Engine,
        build_spec: SpecBuilder,
        store_log: StoreLog,
        store_segment: StoreSegment,
        experiments: ExperimentReader | None = None,
    ) -> None:
        self._engine = engine
        self._build_spec = build_spec
        self._store_log = store_log
        self._store_segment = store_segment
        self._failed_syncs = FailedSyncs(engine.table)
        self._experiments = experiments or ExperimentReader(engine)
        self._state_reader = ActorStateReader(engine)

    def enrol(
        self,
        agent: str,
        pool: str,
        slots: tuple[tuple[int, str, str, str], ...],
        version: str,
        label: str = "",
        address: str = LOOPBACK,
        runtime: str = "",
    ) -> int:
        """Start a new session of the agent and return the session's epoch. An earlier session ends.

        Args:
            slots: for each slot its id, and the type, UUID and name of the device.
            version: the version of the agent's code.
            label: the label of the agent; only jobs with this label run on the agent.
            address: the address at which trials on other agents reach this agent's trials.
            runtime: "process" or "docker", "" from an agent that does not report the runtime.

        Raises:
            CommandRefused: "forbidden" if the cluster is terminating the agent's instance.
                "unavailable" if the instance's row changed in every attempt.
        """
        message = AgentEnrolled(agent, pool, slots, version, label, address, runtime)
        key = Key(instances_partition(pool), agent)
        for _ in range(ENROL_TRIES_MAX):
            row = self._engine.table.get(key)
            if row is not None and not is_active_row(row):
                raise CommandRefused("forbidden", f"the cluster no longer needs instance {agent}")
            # The provisioner looks for a session before a termination. This condition closes the
            # race: either enrol sees the termination, or the provisioner sees the session.
            checks = (Check(key, Expect.ABSENT if row is None else row.revision),)
            try:
                epoch = self._engine.execute_command(
                    addresses.agent(agent), message, extra_writes=partial(_fixed_writes, checks)
                )
            except Conflict:
                continue
            assert isinstance(epoch, int)
            return epoch
        raise CommandRefused("unavailable", f"instance {agent} changes too often; try again")

    def sync(self, agent: str, request: SyncRequest) -> SyncResponse:
        """Accept the agent's reports and logs, advance the trials, and return the desired state.

        Also renews the agent's lease and merges rows of metrics if many were written.

        Raises:
            CommandRefused: "not_found" for an unknown agent. "conflict" for an older session or a
                lost agent. "invalid" or "too_large" for reports that a session cannot store.
                "unavailable" if concurrent calls of the agent conflict in every attempt.
        """
        session, state, states = self._accept_request(agent, request)
        known = set(request.known)
        new_ids = [
            allocation.trial_id
            for allocation in state.desired
            if f"{allocation.trial_id}.{allocation.epoch}" not in known
        ]
        build_spec = self._spec_builder(new_ids)
        trials = TrialSource(
            states.trials.get,
            lambda number: self._experiments.with_definition(states.experiments.get(number)),
            build_spec,
            self._read_address,
        )
        return SyncResponse(
            acked={name: dict(session.acked.get(name, {})) for name in request.known},
            logs_acked={name: session.logs.get(name, 0) for name in request.known},
            revision=state.revision,
            desired=desired_entries(state, session, request.known, trials),
            trials=states.trials,
            experiments=states.experiments,
            ends_ms=state.ends_ms,
        )

    def _spec_builder(self, trial_ids: Sequence[int]) -> SpecBuilder:
        """Return a builder of specs that adds the metadata set by earlier runs of the trial.

        The metadata of all `trial_ids` are read at once, when the first spec is built. An
        allocation that must wait gets no spec, so that often no metadata are read.
        """

        @cache
        def read_metadata() -> dict[int, dict[str, Any]]:
            metadata = read_metadata_of(self._engine.table, trial_ids)
            return dict(zip(trial_ids, metadata, strict=True))

        def build_spec(
            experiment: ExperimentState, definition: Definition, trial: TrialState
        ) -> dict[str, Any]:
            spec = self._build_spec(experiment, definition, trial)
            return {**spec, "metadata": read_metadata()[trial.trial_id]}

        return build_spec

    def check_session(self, agent: str, epoch: int) -> None:
        """Raise CommandRefused unless the agent's session has this epoch.

        The codes are "not_found" for an unknown agent and "conflict" for another epoch.
        """
        _check_agent_state(agent, self._engine.read_state(addresses.agent(agent)), epoch)

    def record_failed_sync(self) -> None:
        """Record that a sync failed because of an error in the cluster."""
        self._failed_syncs.record(self._engine.clock())

    def _accept_request(
        self, agent: str, request: SyncRequest
    ) -> tuple[Session, AgentState, ActorStates]:
        """Accept the reports and logs of a request in a single commit, or split the request in
        halves.

        Halves are accepted one after the other, and split again where needed. The lease is renewed,
        and logs are stored. After the commit, the trials that got messages are advanced. Return the
        new session, the agent's state, and the states of the agent's trials and their experiments.

        Raises CommandRefused: "not_found" for an unknown agent, "conflict" for another epoch,
        "invalid" or "too_large" for reports that cannot be stored. The code is "unavailable" after
        SYNC_TRIES_MAX conflicts with other calls of the agent.
        """
        halves = _split_request(request)
        for _ in range(SYNC_TRIES_MAX):
            (stored_state,), (row,) = self._engine.read_states_and_rows(
                (addresses.agent(agent),), (Key(SESSIONS, agent),)
            )
            state = _check_agent_state(agent, stored_state, request.epoch)
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
                self._engine.advance_until_idle(accepted.receivers)
                self._merge_metric_rows(accepted.allocations_to_merge)
                return accepted.session, *self._read_heads(agent, state, request.epoch, accepted)
            for half in halves:
                result = self._accept_request(agent, half)
            return result
        raise CommandRefused("unavailable", f"agent {agent} is reporting from two places at once")

    def _read_heads(
        self, agent: str, before: AgentState, epoch: int, accepted: AcceptedReports
    ) -> tuple[AgentState, ActorStates]:
        """Read the states of the agent, of trials and of experiments after the commit.

        If no trial got mail, the agent's state cannot have changed and is not read again.

        Args:
            before: the agent's state before the commit.
            epoch: the epoch of the request, which is checked again.
        """
        ids = [desired.trial_id for desired in before.desired]
        if not accepted.receivers:
            return before, self._state_reader.read_actor_states(ids)
        states = self._state_reader.read_actor_states(ids, agent)
        state = _check_agent_state(agent, states.agent, epoch)
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

        A request is split if it has too many reports or writes, or two log chunks of one gang.
        Raises Conflict or InvalidCommit if the commit fails.
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
        """Move the reports of a full row of metrics into the object store. Return other writes
        unchanged.
        """
        return self._store_segment(write) if isinstance(write, Put) else write

    def _merge_metric_rows(self, allocations: Iterable[str]) -> None:
        """Merge the rows of metrics of allocations.

        A failure is only logged, because a later merge includes the rows.
        """
        for allocation in allocations:
            epoch = int(allocation.partition(".")[2])
            try:
                merge_allocation(
                    self._engine.table, _trial_id(allocation), epoch, self._store_segment
                )
            except (TableError, OSError) as error:
                log.info("metrics of %s were not merged: %s", allocation, error)

    def _store_log_chunk(self, chunk: LogChunk, desired: DesiredAllocation, now_ms: int) -> Write:
        """Store a log chunk with the node's rank. Return the write of the index row.

        The caller commits the write; see `TrialLogs.store_chunk`.
        """
        # Older agents send no times, so the text counts as seen now.
        marks = chunk.marks or ((chunk.offset, now_ms),)
        placed = replace(chunk, marks=marks, node_rank=desired.node_rank, nodes=desired.nodes)
        return self._store_log(desired.trial_id, placed)

    def _read_address(self, agent: str) -> str:
        """Read the network address of an agent.

        Return the loopback address for an unknown agent.
        """
        state = self._engine.read_state(addresses.agent(agent))
        return state.address if isinstance(state, AgentState) else LOOPBACK


def _check_agent_state(agent: str, state: object, epoch: int) -> AgentState:
    """Return the agent's state, and check that the current session has this epoch.

    Raises CommandRefused: "not_found" for an unknown agent, "conflict" for another epoch.
    """
    if not isinstance(state, AgentState):
        raise CommandRefused("not_found", f"there is no agent {agent}; enrol first")
    _check_epoch(agent, epoch, state.epoch)
    return state


def _fixed_writes(writes: tuple[Write, ...], reply: object) -> tuple[Write, ...]:
    """Return `writes` for any reply of the command."""
    return writes


def _trial_id(allocation: str) -> int:
    """Return the trial's id from the name of an allocation, `TRIAL.EPOCH`."""
    return int(allocation.partition(".")[0])


def _split_request(request: SyncRequest) -> tuple[SyncRequest, ...]:
    """Split a request into two requests. Return no requests if it has at most one report and one
    chunk.
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
    """Return whether two chunks belong to the same gang.

    A gang's chunks are appended to the shared log, so both would get the same offset.
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
