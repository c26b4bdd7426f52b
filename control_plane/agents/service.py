"""The service of an agent's two calls: enrol, and sync."""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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
from control_plane.agents.definitions import Defined, DefinitionReader
from control_plane.agents.desired_state import SpecBuilder, TrialSource, desired_entries
from control_plane.agents.failed_syncs import FailedSyncs
from control_plane.agents.identity import is_active_row
from control_plane.agents.leases import LEASE_MS, renew_lease
from control_plane.agents.metric_rows import StoreSegment, merge_allocation
from control_plane.agents.reports import (
    Report,
    ReportContext,
    announced_checkpoint,
    damaged_checkpoint,
)
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
from control_plane.checkpoint_gc.checkpoint_inventory import fallback_uuids
from control_plane.engine.engine import Engine
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
# Reports accepted in one commit, so that a trial's mail stays far below what a row can hold.
REPORTS_MAX = 1_000
LOST_MAX = 30

StoreLog = Callable[[int, LogChunk], Put]
"""Stores a chunk of a trial's log, and returns the write of its index row."""


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """The request of an agent's sync, as docs/agent-protocol.md describes it."""

    epoch: int
    known: tuple[str, ...] = ()
    reports: tuple[Report, ...] = ()
    logs: tuple[LogChunk, ...] = ()
    call: int = 0


@dataclass(frozen=True, slots=True)
class SyncResponse:
    """The response to a sync. `trials` are the states it was made from, None for a trial that does
    not exist, and `experiments` theirs. `ends_ms`: the agent's machine is taken away then, as the
    cluster was told.
    """

    acked: Mapping[str, Mapping[str, int]]
    logs_acked: Mapping[str, int]
    revision: int
    desired: list[dict[str, Any]] = field(default_factory=list)
    trials: Mapping[int, TrialState | None] = field(default_factory=dict)
    experiments: Mapping[int, ExperimentState] = field(default_factory=dict)
    lease_ms: int = LEASE_MS
    ends_ms: int | None = None


class AgentService:
    """Serves the calls of agents.

    `build_spec` builds a trial's spec, `store_log` stores chunks of logs, and `store_segment` the
    reports of full rows of metrics.
    """

    def __init__(
        self,
        engine: Engine,
        build_spec: SpecBuilder,
        store_log: StoreLog,
        store_segment: StoreSegment,
    ) -> None:
        self._engine = engine
        self._build_spec = build_spec
        self._store_log = store_log
        self._store_segment = store_segment
        self._failed_syncs = FailedSyncs(engine.table)
        self._definitions = DefinitionReader(engine)
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
        """Begin a new session of the agent and return its epoch.

        Raises CommandRefused: "forbidden" for an instance that the cluster has begun to end.
        """
        message = AgentEnrolled(agent, pool, slots, version, label, address, runtime)
        key = Key(instances_partition(pool), agent)
        for _ in range(ENROL_TRIES_MAX):
            row = self._engine.table.get(key)
            if row is not None and not is_active_row(row):
                raise CommandRefused("forbidden", f"the cluster no longer needs instance {agent}")
            # A process that ends an instance checks for a session first, so that one of the two
            # sees the other.
            seen = (Check(key, Expect.ABSENT if row is None else row.revision),)
            try:
                epoch = self._engine.execute_command(
                    addresses.agent(agent), message, extra_writes=partial(_fixed_writes, seen)
                )
            except Conflict:
                continue
            assert isinstance(epoch, int)
            return epoch
        raise CommandRefused("unavailable", f"instance {agent} changes too often; try again")

    def sync(self, agent: str, request: SyncRequest) -> SyncResponse:
        """Accept what the agent reports, advance the trials concerned, and return what should run.

        Raises CommandRefused: "not_found" for an unknown agent, "conflict" for an older epoch,
        "invalid" or "too_large" for reports that no session can hold.
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
            lambda number: self._with_definition(states.experiments.get(number)),
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
        """The builder of these trials' specs, with the metadata that earlier runs have set, which
        are read for all of them with the first: those that wait for others get no spec.
        """

        @cache
        def read_metadata() -> dict[int, dict[str, Any]]:
            found = read_metadata_of(self._engine.table, trial_ids)
            return dict(zip(trial_ids, found, strict=True))

        def build_spec(
            experiment: ExperimentState, definition: Definition, trial: TrialState
        ) -> dict[str, Any]:
            spec = self._build_spec(experiment, definition, trial)
            return {**spec, "metadata": read_metadata()[trial.trial_id]}

        return build_spec

    def check_session(self, agent: str, epoch: int) -> None:
        """Raise CommandRefused, as `sync` does, unless the agent has the session of this epoch."""
        _check_agent_state(agent, self._engine.read_state(addresses.agent(agent)), epoch)

    def record_failed_sync(self) -> None:
        """Note that a sync failed by an error that is none of its agent's."""
        self._failed_syncs.record(self._engine.clock())

    def read_trial(self, trial_id: int) -> TrialState | None:
        """Read a trial's state, None if there is no such trial."""
        state = self._engine.read_state(addresses.trial(trial_id))
        assert state is None or isinstance(state, TrialState)
        return state

    def read_trials(self, trial_ids: Iterable[int]) -> list[TrialState | None]:
        """Read the states of many trials, in their order; None for one that does not exist."""
        return self._engine.read_states([addresses.trial(trial_id) for trial_id in trial_ids])

    def read_experiment(self, experiment_id: int) -> Defined | None:
        """Read an experiment's state and definition, None if it does not exist or is deleted."""
        return self._with_definition(self._engine.read_state(addresses.experiment(experiment_id)))

    def read_experiments(
        self, experiment_ids: Sequence[int], keys: Sequence[Key] = ()
    ) -> tuple[list[Defined | None], list[Row | None]]:
        """Read the states and definitions of many experiments, in their order, None for one that
        does not exist or is deleted; and other rows together with them.
        """
        names = [addresses.experiment(number) for number in experiment_ids]
        states, rows = self._engine.read_states_and_rows(names, keys)
        return self._definitions.with_definitions(states), rows

    def _with_definition(self, state: object) -> Defined | None:
        return self._definitions.with_definitions([state])[0]

    def _accept_request(
        self, agent: str, request: SyncRequest
    ) -> tuple[Session, AgentState, ActorStates]:
        """Accept a request in one commit, or in halves if one cannot hold it. Returns the agent's
        session, its state, and those of its trials and their experiments afterwards.
        """
        halves = _split_request(request)
        for _ in range(SYNC_TRIES_MAX):
            (found,), (row,) = self._engine.read_states_and_rows(
                (addresses.agent(agent),), (Key(SESSIONS, agent),)
            )
            state = _check_agent_state(agent, found, request.epoch)
            try:
                accepted = self._try_accept(agent, state, row, request)
            except Conflict:
                # Another call of this agent was first: what it accepted stays accepted.
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
                done = self._accept_request(agent, half)
            return done
        raise CommandRefused("unavailable", f"agent {agent} is reporting from two places at once")

    def _read_heads(
        self, agent: str, before: AgentState, epoch: int, accepted: AcceptedReports
    ) -> tuple[AgentState, ActorStates]:
        """The states of the agent, its trials and their experiments after its reports were
        accepted.
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
        now_ms = self._engine.clock()
        before = decode_session(row)
        _check_epoch(agent, request.epoch, before.epoch)
        reports = (*request.reports, *_lost_allocation_reports(state, before, request))
        lease = Key(leases_partition(state.pool), agent)
        contexts, lease_row = self._read_report_contexts(state, reports, lease)
        renew_lease(self._engine.table, lease, lease_row, request.epoch, now_ms)
        others = self._find_announcing_trials(reports, contexts)
        accepted = accept_reports(agent, before, reports, contexts, now_ms, others)
        session, chunks = accept_logs(accepted.session, request.logs)
        ours = {f"{desired.trial_id}.{desired.epoch}": desired for desired in state.desired}
        session = forget_allocations(session, {*request.known, *ours})
        too_long = (
            len(accepted.writes) + len(chunks) >= OPERATIONS_MAX or len(reports) > REPORTS_MAX
        )
        if (too_long or _has_colliding_chunks(chunks, ours)) and _split_request(request):
            return None
        logged = [
            self._store_log_chunk(chunk, ours[chunk.allocation], now_ms)
            for chunk in chunks
            if chunk.allocation in ours
        ]
        if session != before:
            session = replace(session, call=max(before.call, request.call))
            reported = [self._store_full_segment(write) for write in accepted.writes]
            writes = [session_write(agent, session, row), *reported, *logged]
            self._engine.table.commit(writes)
        return accepted._replace(session=session)

    def _store_full_segment(self, write: Write) -> Write:
        return self._store_segment(write) if isinstance(write, Put) else write

    def _merge_metric_rows(self, allocations: Iterable[str]) -> None:
        """Merge rows of metrics. A merge that fails is made up for by the next one."""
        for allocation in allocations:
            epoch = int(allocation.partition(".")[2])
            try:
                merge_allocation(
                    self._engine.table, _trial_id(allocation), epoch, self._store_segment
                )
            except (TableError, OSError) as error:
                log.info("metrics of %s were not merged: %s", allocation, error)

    def _store_log_chunk(self, chunk: LogChunk, desired: DesiredAllocation, now_ms: int) -> Write:
        # An older agent sends no times: the text counts as seen now.
        marks = chunk.marks or ((chunk.offset, now_ms),)
        placed = replace(chunk, marks=marks, node_rank=desired.node_rank, nodes=desired.nodes)
        return self._store_log(desired.trial_id, placed)

    def _read_address(self, agent: str) -> str:
        state = self._engine.read_state(addresses.agent(agent))
        return state.address if isinstance(state, AgentState) else LOOPBACK

    def _read_report_contexts(
        self, state: AgentState, reports: Iterable[Report], other_key: Key
    ) -> tuple[dict[str, ReportContext], Row | None]:
        """Read the context of each allocation that reports and belongs on the agent, together with
        another row.
        """
        reporting = {(report.trial_id, report.epoch) for report in reports}
        damaged = {
            report.trial_id: uuid for report in reports if (uuid := damaged_checkpoint(report))
        }
        ours = [entry for entry in state.desired if (entry.trial_id, entry.epoch) in reporting]
        owners = self._state_reader.find_experiment_ids({entry.trial_id for entry in ours})
        numbers = sorted(set(owners.values()))
        states, (row,) = self._engine.read_states_and_rows(
            [addresses.experiment(number) for number in numbers], (other_key,)
        )
        experiments = dict(zip(numbers, states, strict=True))
        contexts: dict[str, ReportContext] = {}
        for desired in ours:
            head = experiments.get(owners.get(desired.trial_id, 0))
            if isinstance(head, ExperimentState):
                contexts[f"{desired.trial_id}.{desired.epoch}"] = ReportContext(
                    head.metric,
                    head.time_metric,
                    desired.node_rank,
                    desired.nodes,
                    head.is_open_ended or head.counts_epochs,
                    self._find_fallbacks(desired.trial_id, damaged),
                )
        return contexts, row

    def _find_fallbacks(self, trial_id: int, damaged: Mapping[int, str]) -> tuple[str, ...]:
        """Find the checkpoints that a trial may go on from whose own one is damaged."""
        uuid = damaged.get(trial_id)
        return () if uuid is None else fallback_uuids(self._engine.table, trial_id, uuid)

    def _find_announcing_trials(
        self, reports: Iterable[Report], contexts: Mapping[str, ReportContext]
    ) -> Collection[int]:
        """Find the trials for which runs announce checkpoints that do not belong on the agent any
        more.
        """
        announced = {
            report.trial_id
            for report in reports
            if f"{report.trial_id}.{report.epoch}" not in contexts
            and announced_checkpoint(report.line) is not None
        }
        ids = sorted(announced)
        return [number for number, found in zip(ids, self.read_trials(ids), strict=True) if found]


def _check_agent_state(agent: str, state: object, epoch: int) -> AgentState:
    if not isinstance(state, AgentState):
        raise CommandRefused("not_found", f"there is no agent {agent}; enrol first")
    _check_epoch(agent, epoch, state.epoch)
    return state


def _fixed_writes(writes: tuple[Write, ...], reply: object) -> tuple[Write, ...]:
    return writes


def _trial_id(allocation: str) -> int:
    return int(allocation.partition(".")[0])


def _split_request(request: SyncRequest) -> tuple[SyncRequest, ...]:
    """Split a request into two; empty if it cannot be divided."""
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


def _has_colliding_chunks(chunks: list[LogChunk], ours: Mapping[str, DesiredAllocation]) -> bool:
    """Whether two chunks of a gang's log would get the same offset, at the log's end."""
    shared = [
        chunk.allocation
        for chunk in chunks
        if (desired := ours.get(chunk.allocation)) is not None and desired.nodes > 1
    ]
    return len(set(shared)) < len(shared)


def _check_epoch(agent: str, epoch: int, current: int) -> None:
    if epoch != current:
        raise CommandRefused(
            "conflict", f"agent {agent} has enrolled again: session {epoch} is over"
        )


def _lost_allocation_reports(
    state: AgentState, session: Session, request: SyncRequest
) -> list[Report]:
    """Reports of exits for allocations that have reported and that the agent does not have any
    more. Those too many for one call are found by the next. A call older than the last one that
    changed the session says nothing about allocations started since.
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
        # The agent may forget an allocation with a reported exit before the trial's state says so.
        and allocation not in (*request.known, *session.exited)
    ]
    return lost[:LOST_MAX]
