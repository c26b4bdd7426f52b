"""The world of one seed: hosts, machines, users and faults, from the first submission until all is
over and nothing is left.
"""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from control_plane.actors import addresses
from control_plane.actors.pool_messages import PoolConfigured, PoolSettings
from control_plane.agents.audit import audit
from control_plane.agents.leases import mark_lost
from control_plane.api.signing import Signer
from control_plane.dispatch import due
from control_plane.fleet.budget import check_budgets
from control_plane.objects.directory import DirectoryStore
from control_plane.scheduling.model import SchedulerRules
from control_plane.simulation.clock import Clock
from control_plane.state.memory import MemoryTable
from lambdas.simulation.agent import Agent, Surroundings
from lambdas.simulation.calamities import Calamities
from lambdas.simulation.chances import HOUR_MS, NONE, Chances
from lambdas.simulation.checkpoints import Checkpoints
from lambdas.simulation.cloud import SimulatedCloud, offerings, rules_of
from lambdas.simulation.disturbed import Weather
from lambdas.simulation.hosts import Host, Hosts, NoAnswer, Stage
from lambdas.simulation.machines import Fixed, Machines
from lambdas.simulation.network import Network
from lambdas.simulation.people import People
from lambdas.simulation.process import Desk
from lambdas.simulation.searches import Room, Searches
from lambdas.simulation.truths import Truths
from lambdas.simulation.watch import InvariantBroken, Shadow, WatchedTable

START_MS = 1_700_000_000_000
TICK_MS = 60_000
TICKS_PER_AUDIT = 2
RACE_MS = 3_000
TRIGGER_MS = (100, 2_000)
LATE_FACTOR = 20
# A pool whose books have changed is looked at so soon by the provisioner.
RECONCILED_MS = 6_000
# Within which all must be over once the faults have stopped.
END_HOURS = 12
# Of the largest machine that somebody sets up in a pool.
FIXED_SLOTS = 4
RULES = (
    SchedulerRules("fair_share"),
    SchedulerRules("priority"),
    SchedulerRules("priority", preemption=True),
    SchedulerRules("round_robin", fitting="worst"),
)


@dataclass(frozen=True, slots=True)
class Size:
    """How much there is in a world, and for how many hours faults go on at most."""

    experiments: int = 3
    pools: int = 2
    machines_max: int = 3
    hours: float = 2.0


class World:
    """Everything of one run. `folder` is an empty one for what lies on disks.

    With `lenient` commits are not checked, which takes longer the larger the cluster is.
    """

    def __init__(
        self, seed: int, chances: Chances, size: Size, folder: Path, *, lenient: bool = False
    ) -> None:
        self.seed = seed
        self.size = size
        self.clock = Clock()
        self.random = Random(f"{seed}/world")
        self.shadow = Shadow(lenient=lenient)
        self.shadow.on_mail = self._mailed
        self.rows = MemoryTable()
        self.weather = Weather(Random(f"{seed}/weather"), chances, self._others_act)
        checkpoints = Checkpoints(folder / "checkpoints")
        self.cloud = SimulatedCloud(
            self.now_ms, Random(f"{seed}/cloud"), (), rules=rules_of(self.weather)
        )
        self.cloud.weather = self.weather
        self.hosts = Hosts(self._stage(folder), self._told)
        self.network = Network(self.clock, self.weather, self.hosts)
        self.searches = Searches(checkpoints)
        self.desk = Desk(self.clock, checkpoints)
        surroundings = Surroundings(
            self.clock, self.weather, self.network, self.desk, self.searches, self._begins
        )
        self.machines = Machines(surroundings, self.cloud, self.rows, START_MS)
        self.pools = {f"pool-{n}": self._drawn_pool(n) for n in range(size.pools)}
        self._rooms = {name: _room(settings) for name, settings in self.pools.items()}
        self.truths = Truths(self.shadow, checkpoints)
        self.people = People(
            self.clock,
            self.network,
            self.searches,
            self.shadow,
            Random(f"{seed}/people"),
            self._rooms,
            self.now_ms,
        )
        self.calm = False
        self.over = False
        self.steps = 0
        self._triggered: set[str] = set()
        self._ticks = 0

    def now_ms(self) -> int:
        """Epoch ms, of a clock that is right."""
        return START_MS + self.clock.now_ms

    def run(self) -> None:
        """Everything.

        Raises:
            InvariantBroken: something did not hold.
        """
        watched = [logging.getLogger(name) for name in ("control_plane", "provisioner")]
        for logger in watched:
            logger.addHandler(self.truths.errors)
        try:
            self._run()
        finally:
            for logger in watched:
                logger.removeHandler(self.truths.errors)

    def _run(self) -> None:
        self._begin()
        until_ms = round((self.size.hours + END_HOURS) * HOUR_MS)
        while not self.over:
            if not self.clock.advance(until_ms):
                raise InvariantBroken(f"never at rest: {self.describe()}")
            self.steps += 1
        self.truths.at_the_end(self.people.accepted.values())

    def _stage(self, folder: Path) -> Stage:
        for name in ("checkpoints", "objects"):
            (folder / name).mkdir()
        return Stage(
            table=WatchedTable(self.rows, self.shadow),
            weather=self.weather,
            now_ms=self.now_ms,
            objects=DirectoryStore(folder / "objects", Signer(bytes(32))),
            checkpoints=folder / "checkpoints",
            cloud=self.cloud,
        )

    def _drawn_pool(self, number: int) -> PoolSettings:
        """Its scheduler, and where its machines come from: the first pool has a cloud."""
        rules = self.random.choice(RULES)
        if number and self.random.random() < 0.5:
            return PoolSettings(rules)
        sold = offerings(self.random.choice((1, 2, 4)))
        self.cloud.sold = tuple(dict.fromkeys((*self.cloud.sold, *sold)))
        fields = {
            "type": "fake",
            "min_instances": self.random.choice((0, 0, 1)),
            "max_instances": self.random.randint(2, self.size.machines_max + 1),
            "max_idle_agent_period": "5m",
            "max_agent_starting_period": "5m",
            "launch_error_limit": 0,
            "offerings": [asdict(offering) for offering in sold],
        }
        return PoolSettings(rules, provider=json.dumps(fields))

    def _begin(self) -> None:
        for name, settings in self.pools.items():
            self._configure(name, settings)
            if not settings.provider:
                count = self.random.randint(1, self.size.machines_max)
                slots = (FIXED_SLOTS, *(self.random.randint(1, 4) for _ in range(count - 1)))
                self.machines.set_up(Fixed(name, slots))
        self.people.plan(self.size.experiments, self.size.hours)
        self.clock.at(TICK_MS, self._tick)
        calamities = Calamities(self.clock, self.weather, self.machines, self.network, self.random)
        calamities.begin(max(1, self.size.pools * self.size.machines_max // 2))

    def _configure(self, name: str, settings: PoolSettings) -> None:
        """What an operator repeats until it is done."""
        message = PoolConfigured(name, settings)
        while True:
            try:
                self.hosts.serve(lambda host: host.engine.command(addresses.pool(name), message))
            except NoAnswer:
                continue
            return

    def _tick(self) -> None:
        self.clock.at(self.clock.now_ms + TICK_MS, self._tick)
        self.machines.look(self.pools)
        self.truths.hold(self.people.accepted.values())
        if not self.calm and self._may_calm():
            self._calm_down()
        self.over = self._is_over()
        self._ticks += 1
        weather = self.weather
        for _ in range(1 + weather.strikes("duplicates", weather.chances.duplicates)):
            for task in self._tasks(self._ticks):
                self._trigger(task)
        stale = weather.strikes("stale_index", weather.chances.stale_index)
        weather.stale = self.rows.snapshot() if stale else None

    def _tasks(self, number: int) -> list[Callable[[Host], object]]:
        """What a tick does, each on its own so that one that fails holds up no other."""
        tasks: list[Callable[[Host], object]] = [lambda host: due.drive(host.engine)]
        for pool in self.pools:
            tasks.append(partial(_marked, pool=pool))
            if number % TICKS_PER_AUDIT == 0:
                tasks.append(partial(_audited, pool=pool))
            tasks.append(partial(self._reconcile, pool=pool))
        if number % TICKS_PER_AUDIT == 0:
            tasks.append(lambda host: check_budgets(host.engine, list(self.pools)))
        tasks.append(self._swept)
        tasks.append(lambda host: host.collector.collect())
        tasks.append(lambda host: host.suggester.suggest())
        return tasks

    def _reconcile(self, host: Host, pool: str) -> None:
        if self.pools[pool].provider:
            host.reconciler.reconcile(pool)
            self.machines.check_maximum(pool, self._rooms[pool].machines)

    def _swept(self, host: Host) -> None:
        host.sweep.sweep()

    def _trigger(self, operation: Callable[[Host], object]) -> None:
        """Has a host do something, unless it fails: then somebody else will."""
        try:
            self.hosts.serve(operation)
        except NoAnswer:
            return

    def _others_act(self) -> None:
        """Lets what is due soon happen now, while somebody is in the middle of something."""
        self.clock.advance(self.clock.now_ms + RACE_MS)

    def _mailed(self, address: str) -> None:
        """The table's stream: whoever has mail is advanced by somebody, sooner or later."""
        weather = self.weather
        if address in self._triggered:
            return
        if weather.strikes("lost_triggers", weather.chances.lost_triggers):
            return
        low, high = TRIGGER_MS
        late = weather.strikes("reordering", weather.chances.reordering)
        delay_ms = weather.random.randint(low, high * (LATE_FACTOR if late else 1))
        self._once(address, delay_ms, lambda host: host.engine.follow((address,)))

    def _once(self, name: str, delay_ms: int, operation: Callable[[Host], object]) -> None:
        """Has something triggered, unless it is about to be anyway."""
        if name in self._triggered:
            return
        self._triggered.add(name)

        def act() -> None:
            self._triggered.discard(name)
            self._trigger(operation)

        self.clock.at(self.clock.now_ms + delay_ms, act)

    def _told(self, address: str) -> None:
        """Whoever holds a call of an agent that this concerns answers it; the provisioner looks at
        a pool.
        """
        kind, _, name = address.partition("#")
        if kind == "agent":
            self._stir(name)
        elif kind == "trial":
            state = self.shadow.state(address)
            for place in state.allocation.places if state and state.allocation else ():
                self._stir(place.agent)
        elif kind == "pool" and self.pools[name].provider:
            self._once(f"fleet {name}", RECONCILED_MS, lambda host: self._reconcile(host, name))

    def _stir(self, name: str) -> None:
        agent = self.machines.agents.get(name)
        if agent is not None:
            agent.stir()

    def _begins(self, agent: Agent, spec: Mapping[str, Any]) -> None:
        self.truths.begins(agent, spec)

    def _may_calm(self) -> bool:
        return self.clock.now_ms >= self.size.hours * HOUR_MS or self._all_ended()

    def _all_ended(self) -> bool:
        people = self.people
        if not people.asked == self.size.experiments == len(people.accepted):
            return False
        return all(state.status.final for state in self.shadow.states("experiment"))

    def _calm_down(self) -> None:
        """No more faults; whoever runs the cluster sees to what was given up."""
        self.calm = True
        self.weather.chances = NONE
        self.weather.stale = None
        self.network.out = False
        self.cloud.rules = rules_of(self.weather)
        for agent in self.machines.agents.values():
            agent.cut_off = False
        self._insist_on_the_end()

    def _insist_on_the_end(self) -> None:
        """Nobody leaves anything paused, and no machines are kept for nothing."""
        self.people.activate_all()
        if self._all_ended():
            for name, settings in self.pools.items():
                if settings.provider:
                    fields = json.loads(settings.provider) | {"min_instances": 0}
                    given = replace(settings, provider=json.dumps(fields))
                    self._configure(name, given)
        self.clock.at(self.clock.now_ms + 10 * TICK_MS, self._insist_on_the_end)

    def _is_over(self) -> bool:
        if not self.calm or not self._all_ended() or self.shadow.mail():
            return False
        idle = not any(agent.runs for agent in self.machines.present())
        return idle and not list(self.cloud.living()) and not self.machines.claimed(self.pools)

    def describe(self) -> str:
        """What is left, for whoever looks into a run that does not end."""
        runs = {a.name: list(a.runs) for a in self.machines.present() if a.runs}
        open_ones = [s for s in self.shadow.states("experiment") if not s.status.final]
        trials = [s for s in self.shadow.states("trial") if not s.status.final]
        living = [machine.id for machine in self.cloud.living()]
        left = f"mail {self.shadow.mail()[:5]}, runs {runs}, machines {living}"
        return f"{left}, {self.shadow.states('pool')}, {open_ones[:2]}, {trials[:3]}"


def _room(settings: PoolSettings) -> Room:
    if not settings.provider:
        return Room(FIXED_SLOTS)
    fields = json.loads(settings.provider)
    return Room(fields["offerings"][0]["slots"], fields["max_instances"])


def _audited(host: Host, pool: str) -> None:
    audit(host.engine, pool)


def _marked(host: Host, pool: str) -> None:
    engine = host.engine
    mark_lost(engine.table, pool, engine.clock(), engine.follow, TICK_MS)
