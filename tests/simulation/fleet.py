"""A pool whose instances come from the fake cloud, under a virtual clock: the provisioner is the
real one, the pool is a queue of jobs that take time. The invariants hold after every step.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TypeVar

from control_plane.actors.agent.actor import leases_partition
from control_plane.fleet.records import InstanceState, IntentRow, Market, Offering
from control_plane.fleet.rows import read_instances, read_intents
from control_plane.state.faults import Crash, CrashMoment
from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import Expect, Key, Put, StateTable, TableError
from provisioner.clouds.fake.provider import FakeCloud, FakeRules
from provisioner.clouds.provider import CloudFactory, CloudInstance, CloudProvider
from provisioner.model import ConnectedAgent, Demand, JobDemand, ProvisionerSettings
from provisioner.orphan_cleanup import ORPHAN_CLEANUP_PERIOD_MS, OrphanCleaner
from provisioner.pools import PoolSnapshot
from provisioner.reconcile import Reconciler

T = TypeVar("T")

POOL, CLUSTER = "default", "c1"
BEGAN_MS = 1_000_000_000
STEP_MS = 5_000
ORPHAN_MS_MAX = 300_000
# Of a lease in which an agent that went without a word is still believed.
LEASE_MS = 30_000

ON_DEMAND = Offering("small/a/on_demand", "small", "a", Market.ON_DEMAND, 4, 1.0)
SPOT = Offering("small/a/spot", "small", "a", Market.SPOT, 4, 0.3)
SPOT_B = Offering("small/b/spot", "small", "b", Market.SPOT, 4, 0.3)


@dataclass
class Work:
    """A job of one trial: `left_ms` of running; `agent` has it, "" while it waits."""

    slots: int
    left_ms: int
    agent: str = ""


@dataclass
class ScriptedPool:
    """A pool that places work on the agents that are up. What an agent lost waits again."""

    cloud: FakeCloud
    settings: ProvisionerSettings | None
    table: StateTable
    work: list[Work] = field(default_factory=list)
    draining: set[str] = field(default_factory=set)
    ends_ms: dict[str, int] = field(default_factory=dict)
    known: dict[str, int] = field(default_factory=dict)
    enrolled: set[str] = field(default_factory=set)
    supply: tuple[str, int] = ("", 0)

    def pool_names(self) -> Sequence[str]:
        return [POOL] if self.settings is not None else []

    def pool_snapshot(self, pool: str) -> PoolSnapshot:
        waiting: dict[int, int] = {}
        for work in self.work:
            if not work.agent:
                waiting[work.slots] = waiting.get(work.slots, 0) + 1
        jobs = (JobDemand(waiting),) if waiting else ()
        agents = {name: self._connected_agent(name) for name in self.known}
        return PoolSnapshot(
            self.settings, Demand(jobs), agents, {name: 1 for name in self.enrolled}
        )

    def _connected_agent(self, name: str) -> ConnectedAgent:
        work = tuple(item.slots for item in self.work if item.agent == name)
        free = self.cloud.machines[name].offering.slots - sum(work)
        return ConnectedAgent(not work, name not in self.draining, work, free)

    def drain_agent(self, agent: str, ends_ms: int | None = None) -> None:
        self.draining.add(agent)
        if ends_ms is not None:
            self.ends_ms[agent] = ends_ms

    def report_supply(self, pool: str, closed: str, until_ms: int) -> None:
        self.supply = closed, until_ms

    def end_agent(self, pool: str, agent: str) -> None:
        self._lose(agent)

    def used_slots(self, agent: str) -> int:
        return sum(work.slots for work in self.work if work.agent == agent)

    def is_busy(self, name: str) -> bool:
        machine = self.cloud.machines[name]
        return machine.is_agent_up(self.cloud.clock()) and bool(self.used_slots(name))

    def step(self, elapsed_ms: int) -> None:
        """Let agents come and go, and work run, wait, and end."""
        now_ms = self.cloud.clock()
        for machine in self.cloud.machines.values():
            if machine.is_agent_up(now_ms):
                self.known[machine.id] = now_ms
                self.enrol(machine.id)
        for name, seen_ms in list(self.known.items()):
            if now_ms - seen_ms >= LEASE_MS:
                self._lose(name)
        for work in self.work:
            if work.agent and self.known.get(work.agent) == now_ms:
                work.left_ms -= elapsed_ms
        self.work = [work for work in self.work if work.left_ms > 0]
        self._place()

    def enrol(self, name: str) -> None:
        """Give an agent a lease, from its first session on."""
        if name not in self.enrolled:
            self.enrolled.add(name)
            key = Key(leases_partition(POOL), name)
            self.table.commit((Put(key, 1, b"{}", Expect.ABSENT),))

    def _place(self) -> None:
        for work in self.work:
            if not work.agent:
                work.agent = next((name for name in self._open() if self._fits(name, work)), "")

    def _open(self) -> Iterable[str]:
        return (name for name in self.known if name not in self.draining)

    def _fits(self, name: str, work: Work) -> bool:
        return self.cloud.machines[name].offering.slots - self.used_slots(name) >= work.slots

    def _lose(self, name: str) -> None:
        self.known.pop(name, None)
        for work in self.work:
            if work.agent == name:
                work.agent = ""


@dataclass
class CrashingCloud:
    """Passes calls on to the cloud; at one of them the process may crash."""

    cloud: CloudProvider
    crash_at: int = 0
    when: CrashMoment = "before"
    calls: int = 0
    on_terminate: Callable[[Sequence[str]], None] = lambda ids: None

    def offerings(self) -> tuple[Offering, ...]:
        return self.cloud.offerings()

    def launch(self, request: IntentRow) -> tuple[CloudInstance, ...]:
        return self._call_or_crash(lambda: self.cloud.launch(request))

    def list_instances(self, cluster: str, pool: str | None = None) -> Sequence[CloudInstance]:
        return self._call_or_crash(lambda: self.cloud.list_instances(cluster, pool))

    def boot_log(self, instance: str) -> str:
        return self._call_or_crash(lambda: self.cloud.boot_log(instance))

    def terminate(self, ids: Sequence[str]) -> None:
        self.on_terminate(ids)
        self._call_or_crash(lambda: self.cloud.terminate(ids))

    def _call_or_crash(self, call: Callable[[], T]) -> T:
        self.calls += 1
        if self.calls == self.crash_at and self.when == "before":
            raise Crash(f"before call {self.calls}")
        answer = call()
        if self.calls == self.crash_at:
            raise Crash(f"after call {self.calls}")
        return answer


class SimulatedFleet:
    """The cloud, the pool and the processes that reconcile it; `faults` decorates the table."""

    def __init__(
        self,
        settings: ProvisionerSettings,
        rules: FakeRules,
        sold: tuple[Offering, ...] = (ON_DEMAND,),
        *,
        seed: int = 0,
        faults: Callable[[StateTable], StateTable] = lambda table: table,
    ) -> None:
        self.now_ms = BEGAN_MS
        self.cloud = FakeCloud(lambda: self.now_ms, Random(seed), sold, rules)
        self.table = SqliteTable(Path(":memory:"))
        self.pool = ScriptedPool(self.cloud, settings, self.table)
        self.watched = CrashingCloud(self.cloud, on_terminate=self._check_termination)
        self.crashes = 0
        self.most = settings.max_instances
        self._orphaned: dict[str, int] = {}
        self._random = Random(seed + 1)
        self.boot(faults(self.table), lambda settings: self.watched)

    def boot(self, table: StateTable, clouds: CloudFactory) -> None:
        """Start a fresh process, which knows nothing but the table."""
        clock = lambda: self.now_ms  # noqa: E731
        self.reconciler = Reconciler(table, self.pool, clouds, CLUSTER, clock, self._random)
        self.orphan_cleaner = OrphanCleaner(table, clouds, CLUSTER, clock)

    def run(self, seconds: int) -> None:
        """Run for so many seconds, in steps of 5 s."""
        for _ in range(seconds * 1000 // STEP_MS):
            self.step()

    def run_until(self, holds: Callable[[], bool], seconds: int) -> None:
        """Run until something holds, which it must within `seconds`."""
        until_ms = self.now_ms + seconds * 1000
        while not holds():
            assert self.now_ms < until_ms, f"waited {seconds} s in vain: {self.describe()}"
            self.step()

    def step(self) -> None:
        """Run one step: five seconds, a pass, perhaps an orphan cleanup, and a check of the
        invariants.
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
        self.check()

    def check(self) -> None:
        """Check that there are no more instances than the maximum, and no orphan for long."""
        rows = read_instances(self.table, POOL)
        counted = [
            row
            for row in rows
            if row.state is not InstanceState.TERMINATING and row.notice_ms is None
        ]
        open_intents = read_intents(self.table, POOL)
        under_way = sum(intent.count for intent in open_intents)
        assert len(counted) + under_way <= self.most, self.describe()
        claimed = {row.id for row in rows}
        names = {intent.id for intent in open_intents}
        for machine in self.cloud.live_machines():
            if machine.id in claimed or machine.tags["detcloud-intent"] in names:
                self._orphaned.pop(machine.id, None)
            else:
                since_ms = self._orphaned.setdefault(machine.id, self.now_ms)
                age_ms = self.now_ms - since_ms
                assert age_ms <= ORPHAN_MS_MAX, f"{machine} leaked: {self.describe()}"

    def is_empty(self) -> bool:
        """Whether no instance is there, nor any row of one."""
        rows = read_instances(self.table, POOL) or read_intents(self.table, POOL)
        return not rows and not self.cloud.live_machines()

    def describe(self) -> str:
        """Describe the state, for messages of failures."""
        seconds = (self.now_ms - BEGAN_MS) // 1000
        rows = [(row.id, row.state, row.reason) for row in read_instances(self.table, POOL)]
        living = [machine.id for machine in self.cloud.live_machines()]
        return (
            f"at {seconds} s: {rows=} {read_intents(self.table, POOL)=} {living=} {self.pool.work=}"
        )

    def _check_termination(self, ids: Sequence[str]) -> None:
        # Who was not there when the end was decided had no work then.
        came = {row.id for row in read_instances(self.table, POOL) if row.connected_ms is None}
        busy = [name for name in ids if self.pool.is_busy(name) and name not in came]
        assert not busy, f"{busy} had work: {self.describe()}"
