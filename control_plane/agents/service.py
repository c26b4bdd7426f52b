"""The service behind an agent's two calls, enrol and sync."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

from control_plane.access.agent_users import agent_user_fields
from control_plane.actors import addresses
from control_plane.actors.agent.actor import AgentState
from control_plane.actors.experiment.state import Definition, ExperimentState
from control_plane.actors.messages.agent import LOOPBACK, AgentEnrolled
from control_plane.actors.step import CommandRefused
from control_plane.actors.trial.state import TrialState
from control_plane.agents.desired_state import SpecBuilder, TrialSource, desired_entries
from control_plane.agents.failed_syncs import FailedSyncs
from control_plane.agents.gang_checks import gang_check_fields
from control_plane.agents.identity import is_active_row
from control_plane.agents.leases import LEASE_MS
from control_plane.agents.metric_rows import StoreSegment
from control_plane.agents.sessions import read_metadata_of
from control_plane.agents.sync_acceptance import (
    StoreLog,
    SyncAcceptor,
    SyncRequest,
    check_agent_state,
)
from control_plane.agents.tick_age import TickAges
from control_plane.engine.engine import Engine
from control_plane.engine.experiment_reader import ExperimentReader
from control_plane.fleet.records import instances_partition
from control_plane.state.table import Check, Conflict, Expect, Key, Write

ENROL_TRIES_MAX = 20


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
    """The time in ms after which an agent without a call counts as lost."""
    tunnels: tuple[str, ...] = ()
    """The ids of the open tunnels to the agent's allocations."""
    ends_ms: int | None = None
    """When the cloud takes the agent's machine away (epoch ms), None if unknown."""
    tick_age_ms: int | None = None
    """The time in ms since the tick's last pass over the instances of the agent's pool. None
    without a recorded pass.
    """
    code: str = ""
    """The digest of the agent's code, "" from an agent that does not update itself."""
    upgrade: str = ""
    """The digest of the code that an admin requested for the agent, or ""."""


class AgentService:
    """The implementation of the calls of agents. Threads may share a service.

    Args:
        engine: the engine whose table has the rows of agents, trials and experiments.
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
        self._failed_syncs = FailedSyncs(engine.table)
        self._tick_ages = TickAges(engine.table)
        self._experiments = experiments or ExperimentReader(engine)
        self._acceptor = SyncAcceptor(engine, store_log, store_segment)

    def enrol(
        self, agent: str, pool: str, slots: tuple[tuple[int, str, str, str], ...], version: str
    ) -> int:
        """Start a session of an agent without label and address. See `begin_session`."""
        return self.begin_session(AgentEnrolled(agent, pool, slots, version))

    def begin_session(
        self, message: AgentEnrolled, more_writes: Callable[[], tuple[Write, ...]] = tuple
    ) -> int:
        """Start a new session of the agent and return the session's epoch, a number that each
        enrolment increases. An earlier session ends.

        The first session creates the agent. The commit writes the agent's pool, session and lease,
        and mails `AgentJoined` to the pool, which is then advanced. Allocations of an earlier
        session stay assigned unless the agent was lost.

        Args:
            message: the agent and its machine. For an agent of an instance, the agent's id is the
                id of the instance.
            more_writes: returns further writes of the commit. It is called again after a conflict,
                and its errors are passed on.

        Raises:
            CommandRefused: "forbidden" if the cluster is terminating the agent's instance or the
                instance has ended. "unavailable" if the instance's row or the agent's rows changed
                in every attempt. "conflict" if an agent with another installation has a session
                under this name. "too_large" if the agent's state would not fit into a row.
            TableError: the state table failed.
        """
        agent, pool = message.agent, message.pool
        key = Key(instances_partition(pool), agent)
        for _ in range(ENROL_TRIES_MAX):
            row = self._engine.table.get(key)
            if row is not None and not is_active_row(row):
                raise CommandRefused("forbidden", f"the cluster no longer needs instance {agent}")
            # The provisioner looks for a session before a termination. This condition closes the
            # race: either enrol sees the termination, or the provisioner sees the session.
            check = Check(key, Expect.ABSENT if row is None else row.revision)
            checks = (check, *more_writes())
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

        Also renew the agent's lease and merge rows of metrics if many were written. Reports and
        logs that an earlier call accepted are skipped, so a call may be repeated. An allocation
        that the agent has lost is reported as exited.

        Raises:
            CommandRefused: "not_found" for an unknown agent. "conflict" for an older session or a
                lost agent. "invalid" or "too_large" for reports that a session cannot store.
                "unavailable" if concurrent calls of the agent conflict in every attempt.
            TableError, OSError: the state table or the object store failed. A part of the reports
                may be accepted already.
        """
        session, state, states = self._acceptor.accept_request(agent, request)
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
            tunnels=tuple(opened.tunnel for opened in state.tunnels),
            ends_ms=state.ends_ms,
            tick_age_ms=self._tick_ages.age_ms(state.pool, self._engine.clock()),
            code=state.code,
            upgrade=state.upgrade,
        )

    def _spec_builder(self, trial_ids: Sequence[int]) -> SpecBuilder:
        """Return a builder of specs that adds the metadata that a trial has from earlier runs and
        users, the check of a gang's machines, and the agent user.

        The metadata of all `trial_ids` are read at once, when the first spec is built. An
        allocation that must wait gets no spec, so that often no metadata are read. The builder
        raises KeyError for a trial outside `trial_ids`, and TableError.
        """

        @cache
        def read_metadata() -> dict[int, dict[str, Any]]:
            metadata = read_metadata_of(self._engine.table, trial_ids)
            return dict(zip(trial_ids, metadata, strict=True))

        def build_spec(
            experiment: ExperimentState, definition: Definition, trial: TrialState
        ) -> dict[str, Any]:
            spec = self._build_spec(experiment, definition, trial)
            check = gang_check_fields(self._engine, trial)
            user = agent_user_fields(self._engine.table, experiment.owner, definition.workspace)
            return {**spec, "metadata": read_metadata()[trial.trial_id], **check, **user}

        return build_spec

    def check_session(self, agent: str, epoch: int) -> None:
        """Do nothing if the agent's current session has this epoch, the session's number. Otherwise
        raise CommandRefused.

        The codes are "not_found" for an unknown agent and "conflict" for another epoch. Raises
        TableError.
        """
        check_agent_state(agent, self._engine.read_state(addresses.agent(agent)), epoch)

    def record_failed_sync(self) -> None:
        """Record that a sync failed because of an error in the cluster.

        The record is a row that passes over the leases read before they mark silent agents as lost.
        A process writes the row at most once in 10 s. Errors of the state table are ignored.
        """
        self._failed_syncs.record(self._engine.clock())

    def _read_address(self, agent: str) -> str:
        """Read the network address of an agent. Return the loopback address for an unknown agent.

        Raises TableError.
        """
        state = self._engine.read_state(addresses.agent(agent))
        return state.address if isinstance(state, AgentState) else LOOPBACK


def _fixed_writes(writes: tuple[Write, ...], reply: object) -> tuple[Write, ...]:
    """Return `writes` for any reply of the command."""
    return writes
