"""Pools with instances of a cloud, in steps that a test runs.

The provisioner is the real one. The pool is a queue of work that takes time.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from control_plane.actors.agent.actor import leases_partition
from control_plane.fleet.records import InstanceState, Market, Offering
from control_plane.fleet.rows import read_instances, read_intents
from control_plane.simulation.virtual_clock import VirtualClock
from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import Expect, Key, Put, StateTable, TableError
from provisioner.clouds.fake.provider import FakeCloud, FakeRules
from provisioner.clouds.provider import CloudFactory
from provisioner.model import ProvisionerSettings
from provisioner.orphan_cleanup import ORPHAN_CLEANUP_PERIOD_MS, OrphanCleaner
from provisioner.reconcile import Reconciler
from simulator.checks.instance_checker import InstanceChecker
from simulator.checks.state_checker import InvariantBroken
from simulator.faults.crashing_cloud import CrashingCloud
from simulator.faults.table_faults import Crash
from simulator.stepped.moved_clock import START_MS, MovedClock
from simulator.stepped.scripted_pool import ScriptedPool, Work
from simulator.stepped.small_search import POOL

CLUSTER = "c1"
BEGAN_MS = START_MS
STEP_MS = 5_000
# The time in which a silent agent keeps its work.
LEASE_MS = 30_000

ON_DEMAND = Offering("small/a/on_demand", "small", "a", Market.ON_DEMAND, 4, 1.0)
SPOT = Offering("small/a/spot", "small", "a", Market.SPOT, 4, 0.3)
SPOT_B = Offering("small/b/spot", "small", "b", Market.SPOT, 4, 0.3)


class SteppedFleet(ABC):
    """The provisioner of a pool without actors, in steps that a test runs."""

    table: StateTable
    pool: ScriptedPool
    reconciler: Reconciler
    orphan_cleaner: OrphanCleaner

    def __init__(self, seed: int = 1) -> None:
        self._random = Random(seed)

    @property
    @abstractmethod
    def now_ms(self) -> int:
        """The virtual time in epoch ms."""

    @abstractmethod
    def step(self) -> None:
        """Run for STEP_MS, and a pass of the provisioner."""

    @abstractmethod
    def living(self) -> list[str]:
        """Return the ids of the machines that the cloud bills."""

    def boot(self, table: StateTable, clouds: CloudFactory) -> None:
        """Start a process of the provisioner, which knows nothing but the table."""
        clock = lambda: self.now_ms  # noqa: E731
        self.reconciler = Reconciler(table, self.pool, clouds, CLUSTER, clock, self._random)
        self.orphan_cleaner = OrphanCleaner(table, clouds, CLUSTER, clock)

    def add_work(self, count: int) -> None:
        """Add waiting work of four slots and 1 ms each."""
        self.pool.work += [Work(4, 1) for _ in range(count)]

    def run(self, seconds: int) -> None:
        """Run for `seconds`, in steps of STEP_MS."""
        for _ in range(seconds * 1000 // STEP_MS):
            self.step()

    def run_until(self, holds: Callable[[], bool], seconds: int) -> None:
        """Run until `holds`. Raises AssertionError after `seconds`."""
        until_ms = self.now_ms + seconds * 1000
        while not holds():
            assert self.now_ms < until_ms, f"waited {seconds} s in vain: {self.describe()}"
            self.step()

    def states(self) -> dict[str, InstanceState]:
        """Return the states of the pool's instances by id."""
        return {row.id: row.state for row in read_instances(self.table, self.pool.name)}

    def describe(self) -> str:
        """Return a description of the state, for errors."""
        rows = read_instances(self.table, self.pool.name)
        described = [(row.id, row.state, row.reason) for row in rows]
        intents = read_intents(self.table, self.pool.name)
        return f"{described}, {intents}, {self.living()}, {self.pool.work}"


@dataclass
class LeasedPool(ScriptedPool):
    """A pool with the agents of a fake cloud. Each agent has a lease row."""

    cloud: FakeCloud = field(kw_only=True)
    table: StateTable = field(kw_only=True)

    def is_busy(self, name: str) -> bool:
        """Return whether an agent runs and has work."""
        machine = self.cloud.machines[name]
        return machine.is_agent_up(self.cloud.clock()) and bool(self.used_slots(name))

    def step(self, elapsed_ms: int) -> None:
        """Connect and lose agents, and let work run, end and start."""
        now_ms = self.cloud.clock()
        for machine in self.cloud.machines.values():
            if machine.is_agent_up(now_ms):
                self.known[machine.id] = now_ms
                self.enrol(machine.id)
        for name, seen_ms in list(self.known.items()):
            if now_ms - seen_ms >= LEASE_MS:
                self.lose(name)
        for work in self.work:
            if work.agent and self.known.get(work.agent) == now_ms:
                work.left_ms -= elapsed_ms
        self.work = [work for work in self.work if work.left_ms > 0]
        self.place_work()

    def enrol(self, name: str) -> None:
        """Give an agent a lease. Do nothing if the agent has one."""
        if name not in self.leases:
            self.leases[name] = 1
            key = Key(leases_partition(POOL), name)
            self.table.commit((Put(key, 1, b"{}", Expect.ABSENT),))


class FakeCloudFleet(MovedClock, SteppedFleet):
    """A pool with the machines of the fake cloud, and the process that reconciles the pool.

    Args:
        sold: the offerings of the cloud.
        faults: decorates the table of the first process.

    Attributes:
        watched: the cloud as the process calls it.
        crashes: the number of processes that crashed.
    """

    pool: LeasedPool

    def __init__(
        self,
        settings: ProvisionerSettings,
        rules: FakeRules,
        sold: tuple[Offering, ...] = (ON_DEMAND,),
        *,
        seed: int = 0,
        faults: Callable[[StateTable], StateTable] = lambda table: table,
    ) -> None:
        super().__init__(seed + 1)
        self.clock = VirtualClock()
        self.cloud = FakeCloud(lambda: self.now_ms, Random(seed), sold, rules)
        self.table = SqliteTable(Path(":memory:"))
        self.pool = LeasedPool(settings, self._slots_of, cloud=self.cloud, table=self.table)
        self.watched = CrashingCloud(self.cloud, on_terminate=self._check_termination)
        self.crashes = 0
        self._instances_max = settings.max_instances
        self._checker = InstanceChecker(self.table, self.cloud, lambda: self.clock.now_ms)
        self.boot(faults(self.table), lambda settings: self.watched)

    def step(self) -> None:
        """Run for STEP_MS and a pass of the provisioner, then check the invariants.

        A process that crashes is replaced. Errors of the table are ignored. Raises AssertionError
        if an invariant is broken.
        """
        self.now_ms += STEP_MS
        self.pool.step(STEP_MS)
        try:
            for pool in self.reconciler.pools_to_reconcile():
                self.reconciler.reconcile(pool)
            if self.now_ms % ORPHAN_CLEANUP_PERIOD_MS < STEP_MS:
                self.orphan_cleaner.terminate_orphans()
        except Crash:
            self.crashes += 1
            self.boot(self.table, lambda settings: self.watched)
        except TableError:
            pass
        try:
            self._checker.check_maximum(POOL, self._instances_max)
            self._checker.check_owners((POOL,))
        except InvariantBroken as broken:
            raise AssertionError(f"{broken}: {self.describe()}") from broken

    def is_empty(self) -> bool:
        """Return whether no machine lives, and no instance row or stored launch request is left."""
        rows = read_instances(self.table, POOL) or read_intents(self.table, POOL)
        return not rows and not self.living()

    def living(self) -> list[str]:
        """Return the ids of the machines that live."""
        return [machine.id for machine in self.cloud.live_machines()]

    def _slots_of(self, name: str) -> int:
        return self.cloud.machines[name].offering.slots

    def _check_termination(self, ids: Sequence[str]) -> None:
        # An agent that connected after the decision had no work then.
        came = {row.id for row in read_instances(self.table, POOL) if row.connected_ms is None}
        busy = [name for name in ids if self.pool.is_busy(name) and name not in came]
        assert not busy, f"{busy} had work: {self.describe()}"
