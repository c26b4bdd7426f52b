"""Simulated hosts of the control plane.

A host serves a single call at a time, caches rows that it has read, and may crash. A call goes to a
warm host or to a new host. The memory of a host is lost when the host ends; all durable state is in
the table.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TypeVar

from control_plane.actors import addresses
from control_plane.actors.experiment.state import Definition, ExperimentState
from control_plane.actors.step import CommandRefused
from control_plane.actors.trial.state import TrialState
from control_plane.agents.desired_state import SpecBuilder
from control_plane.agents.metric_rows import store_full_segment
from control_plane.agents.service import AgentService
from control_plane.agents.sessions import LOGS, LogChunk
from control_plane.agents.spec import spec_builder
from control_plane.config.storage import CheckpointStorage
from control_plane.state.table import Conflict, Expect, Key, Put, Unavailable
from control_plane.webhooks.deliverer import Deliverer
from lambdas.builder import Cluster
from provisioner.pools import PoolsFailed
from simulator.faults.table_faults import Crash
from simulator.hosts.adapters import CLUSTER, HostAdapters, HostEnvironment

T = TypeVar("T")

WARM_MAX = 3
COLD_SHARE = 0.05


class NoResponse(Exception):
    """A call without an answer, because the host crashed or the table failed.

    The operation may have been executed.
    """


class Host(Cluster):
    """The parts of the cluster in a process of the control plane.

    Attributes:
        is_busy: whether the host serves a call.
    """

    def __init__(self, adapters: HostAdapters) -> None:
        super().__init__(adapters)
        self._host_adapters = adapters
        self.table = adapters.state_table
        self.is_busy = False

    @cached_property
    def agents(self) -> AgentService:
        """The service that answers agents, with specifications for simulated processes."""
        adapters = self._host_adapters
        return AgentService(
            self.engine,
            adapters.build_spec,
            log_chunk_write,
            lambda put: store_full_segment(adapters.object_store, put),
        )

    @cached_property
    def deliverer(self) -> Deliverer:
        """The deliverer of events to the simulated receiver."""
        adapters = self._host_adapters
        return Deliverer(self.table, adapters.clock, adapters.receiver, CLUSTER)

    @contextmanager
    def clock_ahead(self, ms: int) -> Iterator[None]:
        """Set the host's clock ahead by `ms` within a `with` block."""
        self._host_adapters.skew_ms += ms
        try:
            yield
        finally:
            self._host_adapters.skew_ms -= ms


def answer_call(host: Host, operation: Callable[[Host], T]) -> T:
    """Run an operation on a host, and return the result.

    Raises:
        NoResponse: the host crashed and is dead now, the table failed, a pass over pools failed, or
            the operation was refused as "unavailable". The operation may have been executed.
        CommandRefused: the operation was refused with another code.
    """
    try:
        return operation(host)
    except Crash as crash:
        host.table.is_dead = True
        raise NoResponse(str(crash)) from None
    except (Conflict, Unavailable, PoolsFailed) as error:
        raise NoResponse(str(error)) from None
    except CommandRefused as refused:
        if refused.code == "unavailable":
            raise NoResponse(str(refused)) from None
        raise


class HostPool:
    """The hosts, which are started on demand. At most WARM_MAX idle hosts are usually kept.

    Args:
        on_commit: called with the address of each actor that a host committed.

    Attributes:
        started: the number of hosts that were started.
        crashes: the number of crashed hosts.
    """

    def __init__(self, environment: HostEnvironment, on_commit: Callable[[str], None]) -> None:
        self.started = 0
        self.crashes = 0
        self._environment = environment
        self._on_commit = on_commit
        self._warm: list[Host] = []

    def serve(self, operation: Callable[[Host], T]) -> T:
        """Run an operation on an idle or new host, and return the result.

        A host that crashes is discarded.

        Raises:
            NoResponse: the host crashed, the table or a pass over pools failed, or the operation
                was refused as "unavailable". The operation may have been executed.
            CommandRefused: the operation was refused with another code.
        """
        host = self._pick_host()
        host.is_busy = True
        try:
            return answer_call(host, operation)
        finally:
            host.is_busy = False
            if host.table.is_dead:
                self.crashes += 1
                self._warm.remove(host)

    def _pick_host(self) -> Host:
        """Return a random idle host or, if no host is idle or by chance, a new host.

        If WARM_MAX hosts exist, a new host replaces an idle host.
        """
        random = self._environment.faults.random
        idle = [host for host in self._warm if not host.is_busy]
        if idle and random.random() >= COLD_SHARE:
            return idle[random.randrange(len(idle))]
        if len(self._warm) >= WARM_MAX and idle:
            self._warm.remove(idle[0])
        host = self._start_host()
        self._warm.append(host)
        return host

    def _start_host(self) -> Host:
        self.started += 1
        return Host(HostAdapters(self._environment, self._on_commit))


def simulated_spec_builder(checkpoints: CheckpointStorage) -> SpecBuilder:
    """Return a builder of specifications with additional fields for simulated processes.

    The additional fields are `restarts`, `inherited` (the UUID of a checkpoint of another trial, or
    None) and `search` (the experiment's name).
    """
    build_spec = spec_builder(CLUSTER, checkpoints)

    def build_simulated_spec(
        experiment: ExperimentState, definition: Definition, trial: TrialState
    ) -> dict[str, Any]:
        inherited = trial.inherited_checkpoint.uuid if trial.inherited_checkpoint else None
        extra = {"restarts": trial.restarts, "inherited": inherited, "search": experiment.name}
        return build_spec(experiment, definition, trial) | extra

    return build_simulated_spec


def log_chunk_write(trial_id: int, chunk: LogChunk) -> Put:
    """Build the Put that stores a chunk of a trial's log. A repeated chunk replaces the first."""
    key = Key(addresses.trial(trial_id), f"{LOGS}{chunk.allocation}#{chunk.offset:012d}")
    return Put(key, 1, chunk.text, Expect.ANYTHING)
