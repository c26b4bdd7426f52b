"""A pool whose instances come from the fake cloud, under a virtual clock: the provisioner is the
real one, the pool is a queue of jobs that take time. The invariants hold after every step.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TypeVar

from control_plane.actors.agent import leases_of
from control_plane.fleet.records import InstanceState, IntentRow, Market, Offering
from control_plane.fleet.rows import instances, intents
from control_plane.state.faults import Crash, When
from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import Expect, Key, Put, StateTable, TableError
from provisioner.clouds.fake import FakeCloud, FakeRules
from provisioner.clouds.provider import CloudInstance, CloudProvider
from provisioner.model import AgentSeen, Demand, JobDemand, ProvisionerSettings
from provisioner.pools import Books
from provisioner.reconcile import Clouds, Reconciler
from provisioner.sweep import SWEEP_MS, Sweep

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
    known: dict[str, int] = field(default_factory=dict)
    enrolled: set[str] = field(default_factory=set)

    def names(self) -> Sequence[str]:
        return [POOL] if self.settings is not None else []

    def books(self, pool: str) -> Books:
        waiting: dict[int, int] = {}
        for work in self.work:
            if not work.agent:
                waiting[work.slots] = waiting.get(work.slots, 0) + 1
        jobs = (JobDemand(waiting),) if waiting else ()
        agents = {
            name: AgentSeen(not self.used(name), name not in self.draining, self.used(name))
            for name in self.known
        }
        return Books(self.settings, Demand(jobs), agents, {name: 1 for name in self.enrolled})

    def drain(self, agent: str) -> None:
        self.draining.add(agent)

    def ended(self, pool: str, agent: str) -> None:
        self._lose(agent)

    def used(self, agent: str) -> int:
        return sum(work.slots for work in self.work if work.agent == agent)

    def is_busy(self, name: str) -> bool:
        machine = self.cloud.machines[name]
        return machine.agent_is_up(self.cloud.clock()) and bool(self.used(name))

    def step(self, elapsed_ms: int) -> None:
        """Agents come and go, work runs on, waits, and ends."""
        now_ms = self.cloud.clock()
        for machine in self.cloud.machines.values():
            if machine.agent_is_up(now_ms):
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
        """An agent has a lease from its first session on."""
        if name not in self.enrolled:
            self.enrolled.add(name)
            key = Key(leases_of(POOL), name)
            self.table.commit((Put(key, 1, b"{}", Expect.ABSENT),))

    def _place(self) -> None:
        for work in self.work:
            if not work.agent:
                work.agent = next((it for it in self._open() if self._fits(it, work)), "")

    def _open(self) -> Iterable[str]:
        return (name for name in self.known if name not in self.draining)

    def _fits(self, name: str, work: Work) -> bool:
        return self.cloud.machines[name].offering.slots - self.used(name) >= work.slots

    def _lose(self, name: str) -> None:
        self.known.pop(name, None)
        for work in self.work:
            if work.agent == name:
                work.agent = ""


@dataclass
class WatchedCloud:
    """Passes calls on to the cloud; one of them may be the last of the process."""

    cloud: CloudProvider
    crash_at: int = 0
    when: When = "before"
    calls: int = 0
    on_terminate: Callable[[Sequence[str]], None] = lambda ids: None

    def offerings(self) -> tuple[Offering, ...]:
        return self.cloud.offerings()

    def launch(self, request: IntentRow) -> tuple[CloudInstance, ...]:
        return self._called(lambda: self.cloud.launch(request))

    def list(self, cluster: str, pool: str | None = None) -> Sequence[CloudInstance]:
        return self._called(lambda: self.cloud.list(cluster, pool))

    def terminate(self, ids: Sequence[str]) -> None:
        self.on_terminate(ids)
        self._called(lambda: self.cloud.terminate(ids))

    def _called(self, call: Callable[[], T]) -> T:
        self.calls += 1
        if self.calls == self.crash_at and self.when == "before":
            raise Crash(f"before call {self.calls}")
        answer = call()
        if self.calls == self.crash_at:
            raise Crash(f"after call {self.calls}")
        return answer


class FleetWorld:
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
        self.watched = WatchedCloud(self.cloud, on_terminate=self._terminating)
        self.crashes = 0
        self.most = settings.max_instances
        self._orphaned: dict[str, int] = {}
        self._random = Random(seed + 1)
        self.boot(faults(self.table), lambda settings: self.watched)

    def boot(self, table: StateTable, clouds: Clouds) -> None:
        """A fresh process: it knows nothing but the table."""
        clock = lambda: self.now_ms  # noqa: E731
        self.reconciler = Reconciler(table, self.pool, clouds, CLUSTER, clock, self._random)
        self.sweeper = Sweep(table, clouds, CLUSTER, clock)

    def run(self, seconds: int) -> None:
        """Lets time go by, in steps of 5 s."""
        for _ in range(seconds * 1000 // STEP_MS):
            self.step()

    def run_until(self, holds: Callable[[], bool], seconds: int) -> None:
        """The same until something holds, which it must within `seconds`."""
        until_ms = self.now_ms + seconds * 1000
        while not holds():
            assert self.now_ms < until_ms, f"waited {seconds} s in vain: {self.shown()}"
            self.step()

    def step(self) -> None:
        """Five seconds, a pass, perhaps a sweep, and a look at the invariants."""
        self.now_ms += STEP_MS
        self.pool.step(STEP_MS)
        try:
            for pool in self.reconciler.pools():
                self.reconciler.reconcile(pool)
            if self.now_ms % SWEEP_MS < STEP_MS:
                self.sweeper.sweep()
        except Crash:
            self.crashes += 1
            self.boot(self.table, lambda settings: self.watched)
        except TableError:
            pass
        self.check()

    def check(self) -> None:
        """No more instances than the maximum, and nobody's instance for long."""
        rows = instances(self.table, POOL)
        counted = [
            row
            for row in rows
            if row.state is not InstanceState.TERMINATING and row.notice_ms is None
        ]
        open_intents = intents(self.table, POOL)
        under_way = sum(intent.count for intent in open_intents)
        assert len(counted) + under_way <= self.most, self.shown()
        claimed = {row.id for row in rows}
        names = {intent.id for intent in open_intents}
        for machine in self.cloud.living():
            if machine.id in claimed or machine.tags["detcloud-intent"] in names:
                self._orphaned.pop(machine.id, None)
            else:
                since_ms = self._orphaned.setdefault(machine.id, self.now_ms)
                age_ms = self.now_ms - since_ms
                assert age_ms <= ORPHAN_MS_MAX, f"{machine} leaked: {self.shown()}"

    def is_empty(self) -> bool:
        """Nothing lives, and nobody believes that anything does."""
        rows = instances(self.table, POOL) or intents(self.table, POOL)
        return not rows and not self.cloud.living()

    def shown(self) -> str:
        """For messages of failures."""
        seconds = (self.now_ms - BEGAN_MS) // 1000
        rows = [(row.id, row.state, row.reason) for row in instances(self.table, POOL)]
        living = [machine.id for machine in self.cloud.living()]
        return f"at {seconds} s: {rows=} {intents(self.table, POOL)=} {living=} {self.pool.work=}"

    def _terminating(self, ids: Sequence[str]) -> None:
        # Who was not there when the end was decided had no work then.
        came = {row.id for row in instances(self.table, POOL) if row.connected_ms is None}
        busy = [name for name in ids if self.pool.is_busy(name) and name not in came]
        assert not busy, f"{busy} had work: {self.shown()}"
