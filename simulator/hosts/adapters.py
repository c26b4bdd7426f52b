"""The simulation as the host of a cluster: virtual time, a table with faults, a simulated cloud."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from random import Random

from control_plane.agents.desired_state import SpecBuilder
from control_plane.config.storage import CheckpointStorage
from control_plane.engine.engine import Engine
from control_plane.engine.engine_timing import EngineTiming
from control_plane.objects.signing import HmacUrlSigner
from control_plane.objects.store import ObjectStore
from control_plane.state.table import StateTable
from lambdas.adapters import Adapters
from provisioner.clouds.provider import CloudProvider
from provisioner.model import ProvisionerSettings
from simulator.faults.fault_state import FaultState
from simulator.faults.faulty_table import FaultyTable
from simulator.hosts.receiver import SimulatedReceiver
from simulator.hosts.suggestions import sample_point

CLOCK_SKEW_MS_MAX = 3_000
CLUSTER = "simulated"


class SimulatedEngine(Engine):
    """An engine whose host may end before the engine has advanced the receivers of new mail."""

    faults: FaultState
    """The source of the faults. Must be set before the first use."""

    def advance_until_idle(self, addresses: Iterable[str], *, budget_ms: int = 10_000) -> None:
        """Advance actors as Engine does. With the fault `lost_triggers`, do nothing instead."""
        faults = self.faults
        if faults.draw_fault("lost_triggers", faults.rates.lost_triggers):
            return
        super().advance_until_idle(addresses, budget_ms=budget_ms)


@dataclass(frozen=True)
class HostEnvironment:
    """The parts of the simulation that all hosts share."""

    open_table: Callable[[], StateTable]
    """Opens the shared table for a host, which accesses the table with its own faults."""
    faults: FaultState
    now_ms: Callable[[], int]
    """Returns the virtual time in epoch ms."""
    open_objects: Callable[[], ObjectStore]
    checkpoints: CheckpointStorage
    cloud: CloudProvider
    build_spec: SpecBuilder
    """Builds the specifications that agents get."""
    timing: EngineTiming | None = None
    """The timing of engines. None for the virtual time without pauses after conflicts: a pause is
    not needed in a single thread, because the other host has already finished.
    """
    is_api_down: Callable[[], bool] = lambda: False
    """Returns whether the API answers no agent."""
    receiver: SimulatedReceiver | None = None
    """The receiver of webhooks. None for a cluster without webhooks."""


class HostAdapters(Adapters):
    """The adapters of a simulated host, which has a separate faulty table and a wrong clock.

    Args:
        environment: the parts that all hosts share.
        on_commit: called with the address of each committed actor.

    Attributes:
        skew_ms: the difference of the host's clock to the virtual time.
    """

    cluster_id = CLUSTER
    api_hosts = frozenset[str]()
    # The type of the simulated cloud, and the type that tests with a fake of Google Cloud use.
    provider_types = frozenset({"fake", "gcp"})
    suggestion_model = staticmethod(sample_point)

    def __init__(self, environment: HostEnvironment, on_commit: Callable[[str], None]) -> None:
        rates, random = environment.faults.rates, environment.faults.random
        skew = CLOCK_SKEW_MS_MAX * rates.clock_skew
        self.skew_ms = round(random.uniform(-skew, skew))
        self._jitter = Random(random.random())
        self._environment = environment
        self._on_commit = on_commit

    @cached_property
    def state_table(self) -> FaultyTable:
        return FaultyTable(self._environment.open_table(), self._environment.faults)

    @cached_property
    def object_store(self) -> ObjectStore:
        return self._environment.open_objects()

    @property
    def receiver(self) -> SimulatedReceiver:
        """The receiver of webhooks."""
        assert self._environment.receiver is not None
        return self._environment.receiver

    @property
    def build_spec(self) -> SpecBuilder:
        """The builder of the specifications that agents get."""
        return self._environment.build_spec

    @property
    def checkpoint_storage(self) -> CheckpointStorage:
        return self._environment.checkpoints

    @property
    def url_signer(self) -> HmacUrlSigner:
        return HmacUrlSigner(bytes(32))

    @property
    def timing(self) -> EngineTiming:
        """The timing of the environment, by default the virtual time without pauses."""
        return self._environment.timing or EngineTiming(
            monotonic_seconds=lambda: self._environment.now_ms() / 1000,
            pause_after_conflict=lambda: None,
        )

    @property
    def random(self) -> Random:
        return self._jitter

    def clock(self) -> int:
        """Return the virtual time in epoch ms by this host's clock, including the skew."""
        return self._environment.now_ms() + self.skew_ms

    def is_api_down(self) -> bool:
        """Return whether the API answers no agent."""
        return self._environment.is_api_down()

    def make_engine(self) -> SimulatedEngine:
        """Create an engine on this host's faulty table. The fault `lost_triggers` may stop it."""
        engine = SimulatedEngine(self.state_table, self.clock, self.timing)
        engine.faults = self._environment.faults
        engine.on_commit = self._on_commit
        return engine

    def cloud_provider(self, settings: ProvisionerSettings) -> CloudProvider:
        """Return the cloud that all hosts share, for settings with a known provider type.

        The other settings are ignored. Raises ConfigurationError for an unknown provider type.
        """
        self._check_provider_type(settings)
        return self._environment.cloud
