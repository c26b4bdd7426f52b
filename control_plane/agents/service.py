"""The agent's two calls: enrol, and sync."""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from control_plane.actors import addresses
from control_plane.actors.agent import SESSIONS, AgentState, Desired, leases_of
from control_plane.actors.agent_messages import LOOPBACK, AgentEnrolled
from control_plane.actors.experiment_state import Definition, ExperimentState
from control_plane.actors.records import Status
from control_plane.actors.step import Refused
from control_plane.actors.trial_state import TrialState
from control_plane.agents.desired import SpecOf, Trials, desired_of
from control_plane.agents.identity import is_wanted
from control_plane.agents.leases import LEASE_MS, renew
from control_plane.agents.reports import Measures, Report
from control_plane.agents.segments import StoreSegment, merge
from control_plane.agents.sessions import (
    LogChunk,
    Session,
    Taken,
    forget,
    put_session,
    session_of,
    take_logs,
    take_reports,
)
from control_plane.dispatch.engine import Engine
from control_plane.fleet.records import instances_of
from control_plane.state.table import (
    OPERATIONS_MAX,
    Check,
    CommitRefused,
    Conflict,
    Expect,
    Key,
    Put,
    Row,
    TableError,
    Write,
)

log = logging.getLogger(__name__)

ENROL_TRIES_MAX = 20
SYNC_TRIES_MAX = 20
DEFINITIONS_MAX = 256
TRIALS_KNOWN_MAX = 10_000
# What goes into one commit, so that a trial's mail stays far below what a row holds.
REPORTS_MAX = 1_000
LOST_MAX = 30

StoreLog = Callable[[int, LogChunk], Put]
"""Stores a chunk of a trial's log and returns the write of its index row."""


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """What an agent says; see docs/agent-protocol.md."""

    epoch: int
    known: tuple[str, ...] = ()
    reports: tuple[Report, ...] = ()
    logs: tuple[LogChunk, ...] = ()
    call: int = 0


@dataclass(frozen=True, slots=True)
class SyncAnswer:
    """What the cluster answers. `trials`: the heads that it was made of, None for a trial that is
    not there.
    """

    acked: Mapping[str, Mapping[str, int]]
    logs_acked: Mapping[str, int]
    revision: int
    desired: list[dict[str, Any]] = field(default_factory=list)
    trials: Mapping[int, TrialState | None] = field(default_factory=dict)
    lease_ms: int = LEASE_MS


class AgentService:
    """Serves agents on an engine. `spec_of` builds a trial's spec, `store_log` keeps log text,
    `store_segment` the reports of full rows of metrics.
    """

    def __init__(
        self, engine: Engine, spec_of: SpecOf, store_log: StoreLog, store_segment: StoreSegment
    ) -> None:
        self._engine = engine
        self._spec_of = spec_of
        self._store_log = store_log
        self._store_segment = store_segment
        self._definitions: dict[tuple[int, int], Definition] = {}
        self._experiments: dict[int, int] = {}

    def enrol(
        self,
        agent: str,
        pool: str,
        slots: tuple[tuple[int, str, str, str], ...],
        version: str,
        label: str = "",
        address: str = LOOPBACK,
    ) -> int:
        """Begins a new session of the agent and returns its epoch.

        Raises Refused: "forbidden" for an instance of the pool that the cluster has begun to end.
        """
        message = AgentEnrolled(agent, pool, slots, version, label, address)
        key = Key(instances_of(pool), agent)
        for _ in range(ENROL_TRIES_MAX):
            row = self._engine.table.get(key)
            if row is not None and not is_wanted(row):
                raise Refused("forbidden", f"the cluster does not want instance {agent} any more")
            # Who ends an instance looks for a session first, so one of the two must see the other.
            seen = (Check(key, Expect.ABSENT if row is None else row.revision),)
            try:
                epoch = self._engine.command(
                    addresses.agent(agent), message, beside=partial(_beside, seen)
                )
            except Conflict:
                continue
            assert isinstance(epoch, int)
            return epoch
        raise Refused("unavailable", f"instance {agent} changes too often; try again")

    def sync(self, agent: str, request: SyncRequest) -> SyncAnswer:
        """Takes what the agent reports, advances whom it concerns, and says what should run.

        Raises Refused: "not_found" for an unknown agent, "conflict" for an older epoch, "invalid"
        or "too_large" for what no session can hold.
        """
        session, state, heads = self._take_all(agent, request)
        trials = Trials(heads.get, self.experiment, self._spec_of, self._address)
        return SyncAnswer(
            acked={name: dict(session.acked.get(name, {})) for name in request.known},
            logs_acked={name: session.logs.get(name, 0) for name in request.known},
            revision=state.revision,
            desired=desired_of(state, session, request.known, trials),
            trials=heads,
        )

    def check_session(self, agent: str, epoch: int) -> None:
        """Whether the agent has this session. Raises Refused, as `sync`."""
        _of_session(agent, self._engine.state(addresses.agent(agent)), epoch)

    def trial(self, trial_id: int) -> TrialState | None:
        """A trial's head."""
        found = self._engine.state(addresses.trial(trial_id))
        assert found is None or isinstance(found, TrialState)
        return found

    def trials(self, trial_ids: Iterable[int]) -> list[TrialState | None]:
        """The heads of many trials, in their order."""
        return self._engine.states([addresses.trial(trial_id) for trial_id in trial_ids])

    def experiment(self, experiment_id: int) -> tuple[ExperimentState, Definition] | None:
        """An experiment's head and its definition."""
        address = addresses.experiment(experiment_id)
        state = self._engine.state(address)
        if not isinstance(state, ExperimentState) or state.status is Status.DELETED:
            return None
        # A definition is written once in an experiment's life, so it is read once.
        key = (experiment_id, state.life)
        definition = self._definitions.get(key) or self._engine.part(address, "definition")
        if not isinstance(definition, Definition):
            return None
        if len(self._definitions) >= DEFINITIONS_MAX:
            self._definitions.clear()
        self._definitions[key] = definition
        return state, definition

    def _take_all(
        self, agent: str, request: SyncRequest
    ) -> tuple[Session, AgentState, dict[int, TrialState | None]]:
        """Takes a request in one commit, or in halves where one cannot hold it. Returns the
        agent's session, its head and those of its trials afterwards.
        """
        halves = _halves(request)
        for _ in range(SYNC_TRIES_MAX):
            (found,), (row,) = self._engine.read((addresses.agent(agent),), (Key(SESSIONS, agent),))
            state = _of_session(agent, found, request.epoch)
            try:
                taken = self._take(agent, state, row, request)
            except Conflict:
                # Another call of this agent was first: what it took counts as taken.
                continue
            except CommitRefused as refused:
                if not halves:
                    raise Refused(
                        "too_large", f"agent {agent} reports too much: {refused}"
                    ) from None
                taken = None
            if taken is not None:
                self._engine.follow(taken.mailed)
                self._merge(taken.crowded)
                return taken.session, *self._after(agent, state, request.epoch, taken)
            for half in halves:
                done = self._take_all(agent, half)
            return done
        raise Refused("unavailable", f"agent {agent} reports from two places at once")

    def _after(
        self, agent: str, before: AgentState, epoch: int, taken: Taken
    ) -> tuple[AgentState, dict[int, TrialState | None]]:
        """The agent's head and its trials', once it is taken what the agent said."""
        ids = [desired.trial_id for desired in before.desired]
        if not taken.mailed:
            return before, dict(zip(ids, self.trials(ids), strict=True))
        found, *trials = self._engine.states([addresses.agent(agent), *map(addresses.trial, ids)])
        state = _of_session(agent, found, epoch)
        heads = dict(zip(ids, trials, strict=True))
        came = [it.trial_id for it in state.desired if it.trial_id not in heads]
        return state, heads | dict(zip(came, self.trials(came), strict=True))

    def _take(
        self, agent: str, state: AgentState, row: Row | None, request: SyncRequest
    ) -> Taken | None:
        now_ms = self._engine.clock()
        before = session_of(row)
        _check_session(agent, request.epoch, before.epoch)
        reports = (*request.reports, *_lost(state, before, request))
        lease = Key(leases_of(state.pool), agent)
        measures, leased = self._measures(state, reports, lease)
        renew(self._engine.table, lease, leased, request.epoch, now_ms)
        taken = take_reports(agent, before, reports, measures, now_ms)
        session, chunks = take_logs(taken.session, request.logs)
        ours = {f"{desired.trial_id}.{desired.epoch}": desired for desired in state.desired}
        session = forget(session, {*request.known, *ours})
        too_long = len(taken.writes) + len(chunks) >= OPERATIONS_MAX or len(reports) > REPORTS_MAX
        if (too_long or _in_one_place(chunks, ours)) and _halves(request):
            return None
        logged = [
            self._logged(chunk, ours[chunk.allocation], now_ms)
            for chunk in chunks
            if chunk.allocation in ours
        ]
        if session != before:
            session = replace(session, call=max(before.call, request.call))
            reported = [self._kept(write) for write in taken.writes]
            writes = [put_session(agent, session, row), *reported, *logged]
            self._engine.table.commit(writes)
        return taken._replace(session=session)

    def _kept(self, write: Write) -> Write:
        return self._store_segment(write) if isinstance(write, Put) else write

    def _merge(self, crowded: Iterable[str]) -> None:
        """Merges rows of metrics: what fails here is done when they are more."""
        for allocation in crowded:
            epoch = int(allocation.partition(".")[2])
            try:
                merge(self._engine.table, _trial_id(allocation), epoch, self._store_segment)
            except (TableError, OSError) as error:
                log.info("metrics of %s were not merged: %s", allocation, error)

    def _logged(self, chunk: LogChunk, desired: Desired, now_ms: int) -> Write:
        # An older agent does not say when it saw what: then it was now.
        marks = chunk.marks or ((chunk.offset, now_ms),)
        told = replace(chunk, marks=marks, node_rank=desired.node_rank, nodes=desired.nodes)
        return self._store_log(desired.trial_id, told)

    def _address(self, agent: str) -> str:
        state = self._engine.state(addresses.agent(agent))
        return state.address if isinstance(state, AgentState) else LOOPBACK

    def _measures(
        self, state: AgentState, reports: Iterable[Report], beside: Key
    ) -> tuple[dict[str, Measures], Row | None]:
        """What counts of each allocation that reports and belongs on the agent, and the row that
        was read with it.
        """
        reporting = {(report.trial_id, report.epoch) for report in reports}
        ours = [it for it in state.desired if (it.trial_id, it.epoch) in reporting]
        owners = self._owners({it.trial_id for it in ours})
        numbers = sorted(set(owners.values()))
        heads, (row,) = self._engine.read([addresses.experiment(it) for it in numbers], (beside,))
        experiments = dict(zip(numbers, heads, strict=True))
        found: dict[str, Measures] = {}
        for desired in ours:
            head = experiments.get(owners.get(desired.trial_id, 0))
            if isinstance(head, ExperimentState):
                found[f"{desired.trial_id}.{desired.epoch}"] = Measures(
                    head.metric, head.time_metric, desired.node_rank, desired.nodes
                )
        return found, row

    def _owners(self, trial_ids: Collection[int]) -> dict[int, int]:
        """The experiments of trials, which stay the same for good: each is looked up once."""
        known = self._experiments
        owners = {it: owner for it in trial_ids if (owner := known.get(it)) is not None}
        unknown = sorted(set(trial_ids) - owners.keys())
        if len(known) + len(unknown) > TRIALS_KNOWN_MAX:
            known.clear()
        for number, trial in zip(unknown, self.trials(unknown), strict=True):
            if trial is not None:
                known[number] = owners[number] = trial.experiment_id
        return owners


def _of_session(agent: str, found: object, epoch: int) -> AgentState:
    if not isinstance(found, AgentState):
        raise Refused("not_found", f"there is no agent {agent}; enrol first")
    _check_session(agent, epoch, found.epoch)
    return found


def _beside(writes: tuple[Write, ...], reply: object) -> tuple[Write, ...]:
    return writes


def _trial_id(allocation: str) -> int:
    return int(allocation.partition(".")[0])


def _halves(request: SyncRequest) -> tuple[SyncRequest, ...]:
    """The same in two; empty for what cannot be divided."""
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


def _in_one_place(chunks: list[LogChunk], ours: Mapping[str, Desired]) -> bool:
    """Whether two pieces of a gang's log would take the same place in it, behind the last one."""
    shared = [
        chunk.allocation
        for chunk in chunks
        if (desired := ours.get(chunk.allocation)) is not None and desired.nodes > 1
    ]
    return len(set(shared)) < len(shared)


def _check_session(agent: str, epoch: int, current: int) -> None:
    if epoch != current:
        raise Refused("conflict", f"agent {agent} has enrolled again: session {epoch} is over")


def _lost(state: AgentState, session: Session, request: SyncRequest) -> list[Report]:
    """Exits of allocations that reported from here once and that the agent no longer knows. What
    is too much for one call is found by the next; a call older than the last one that brought
    anything knows nothing of what has begun since.
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
        # One that has said its exit may be forgotten before the cluster's own books are.
        and allocation not in (*request.known, *session.exited)
    ]
    return lost[:LOST_MAX]
