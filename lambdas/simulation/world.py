"""The world of one seed: hosts, machines, users and faults, from the first submission until all is
over and nothing is left.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from control_plane.actors import addresses
from control_plane.actors.pool_messages import PoolConfigured
from control_plane.agents.audit import audit
from control_plane.agents.leases import mark_lost
from control_plane.api.signing import Signer
from control_plane.dispatch import due
from control_plane.objects.directory import DirectoryStore
from control_plane.simulation.clock import Clock
from control_plane.state.memory import MemoryTable
from lambdas.simulation.agent import Agent
from lambdas.simulation.agent import World as Surroundings
from lambdas.simulation.chances import HOUR_MS, NONE, Chances
from lambdas.simulation.checkpoints import Checkpoints
from lambdas.simulation.disturbed import Weather
from lambdas.simulation.hosts import Host, Hosts, NoAnswer, Stage
from lambdas.simulation.network import Network
from lambdas.simulation.people import People
from lambdas.simulation.process import Desk, Notice
from lambdas.simulation.searches import Searches
from lambdas.simulation.watch import InvariantBroken, Shadow, WatchedTable

START_MS = 1_700_000_000_000
TICK_MS = 60_000
TICKS_PER_AUDIT = 2
RACE_MS = 3_000
TRIGGER_MS = (100, 2_000)
LEASE_MS = 30_000
NOTICES_MS = (30_000, 120_000)
# Within which all must be over once the faults have stopped.
END_HOURS = 12


@dataclass(frozen=True, slots=True)
class Size:
    """How much there is in a world, and for how many hours faults go on at most."""

    experiments: int = 3
    pools: int = 2
    machines: int = 4
    slots_max: int = 4
    hours: float = 4.0


class World:
    """Everything of one run. `folder` is an empty one for what lies on disks."""

    def __init__(self, seed: int, chances: Chances, size: Size, folder: Path) -> None:
        self.seed = seed
        self.size = size
        self.clock = Clock()
        self.chances = chances
        self.random = Random(f"{seed}/world")
        self.shadow = Shadow()
        self.shadow.on_mail = self._mailed
        self.rows = MemoryTable()
        self.weather = Weather(Random(f"{seed}/weather"), chances, self._others_act)
        checkpoints = Checkpoints(folder / "checkpoints")
        checkpoints.root.mkdir()
        (folder / "objects").mkdir()
        stage = Stage(
            table=WatchedTable(self.rows, self.shadow),
            weather=self.weather,
            now_ms=lambda: START_MS + self.clock.now_ms,
            objects=DirectoryStore(folder / "objects", Signer(bytes(32))),
            checkpoints=checkpoints.root,
        )
        self.hosts = Hosts(stage, self._told)
        self.network = Network(self.clock, self.weather, self.hosts)
        self.searches = Searches(checkpoints)
        self.desk = Desk(self.clock, checkpoints)
        self.surroundings = Surroundings(
            self.clock, self.weather, self.network, self.desk, self.searches, self._placed
        )
        self.agents: dict[str, Agent] = {}
        self.named = 0
        self.pools = tuple(f"pool-{n}" for n in range(size.pools))
        self.people = People(
            self.clock,
            self.network,
            self.searches,
            self.shadow,
            Random(f"{seed}/people"),
            self.pools,
            stage.now_ms,
        )
        self.calm = False
        self.over = False
        self.steps = 0
        self._triggered: set[str] = set()
        self._tick_number = 0

    def run(self) -> None:
        """Everything.

        Raises:
            InvariantBroken: something did not hold.
        """
        self._begin()
        until_ms = round((self.size.hours + END_HOURS) * HOUR_MS)
        while not self.over:
            if not self.clock.advance(until_ms):
                raise InvariantBroken(f"never at rest: {self.describe()}")
            self.steps += 1

    def _begin(self) -> None:
        for pool in self.pools:
            self._always(lambda host, pool=pool: self._configure(host, pool))  # type: ignore[misc]
        for n in range(self.size.machines):
            self._boot(self.pools[n % len(self.pools)])
        self.people.plan(self.size.experiments, self.size.hours)
        self.clock.at(TICK_MS, self._tick)
        for name in ("agent_restarts", "reboots", "losses", "zombies", "notices", "outages"):
            self._expect(name)
        self._expect("storms")

    def _configure(self, host: Host, pool: str) -> None:
        host.engine.command(addresses.pool(pool), PoolConfigured(pool))

    def _always(self, operation: object) -> None:
        """Has something done that an operator repeats until it is."""
        while True:
            try:
                self.hosts.serve(operation)  # type: ignore[arg-type]
                return
            except NoAnswer:
                continue

    def _boot(self, pool: str) -> Agent:
        self.named += 1
        slots = self.random.randint(1, self.size.slots_max)
        if self.named <= len(self.pools):
            slots = self.size.slots_max
        agent = Agent(self.surroundings, f"agent-{self.named}", pool, slots)
        self.agents[agent.name] = agent
        self.clock.at(self.clock.now_ms + self.random.randint(0, 60_000), agent.start)
        return agent

    def _tick(self) -> None:
        self.clock.at(self.clock.now_ms + TICK_MS, self._tick)
        if not self.calm and self._may_calm():
            self._calm_down()
        self.over = self._is_over()
        self._tick_number += 1
        number = self._tick_number
        twice = self.weather.strikes("duplicates", self.weather.chances.duplicates)
        for _ in range(1 + twice):
            self._trigger(lambda host: self._ticked(host, number))
        stale = self.weather.strikes("stale_index", self.weather.chances.stale_index)
        self.weather.stale = self.rows.snapshot() if stale else None

    def _ticked(self, host: Host, number: int) -> None:
        now_ms = host.engine.clock()
        due.drive(host.engine)
        for pool in self.pools:
            mark_lost(host.engine.table, pool, now_ms, host.engine.follow, TICK_MS)
            if number % TICKS_PER_AUDIT == 0:
                audit(host.engine, pool)
        host.collector.collect()
        host.suggester.suggest()

    def _trigger(self, operation: object) -> None:
        """Has a host do something, unless it fails: then somebody else will."""
        try:
            self.hosts.serve(operation)  # type: ignore[arg-type]
        except NoAnswer:
            pass

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
        self._triggered.add(address)

        def advance() -> None:
            self._triggered.discard(address)
            self._trigger(lambda host: host.engine.follow((address,)))

        low, high = TRIGGER_MS
        late = weather.strikes("reordering", weather.chances.reordering)
        delay_ms = weather.random.randint(low, high * (20 if late else 1))
        self.clock.at(self.clock.now_ms + delay_ms, advance)

    def _told(self, address: str) -> None:
        """Who holds a call of an agent that this concerns answers it."""
        kind, _, name = address.partition("#")
        if kind == "agent" and name in self.agents:
            self.agents[name].stir()
        elif kind == "trial":
            state = self.shadow.state(address)
            for place in state.allocation.places if state and state.allocation else ():
                if place.agent in self.agents:
                    self.agents[place.agent].stir()

    def _placed(self, agent: Agent, allocation: str, rank: int) -> None:
        """An agent is told to run an allocation's node."""
        for other in self.agents.values():
            run = other.runs.get(allocation)
            if other is not agent and run is not None and not run.ended and run.rank == rank:
                raise InvariantBroken(f"{allocation} runs on {other.name} and {agent.name}")

    def _expect(self, name: str) -> None:
        """Has a fault strike as often as its chances say."""
        share = getattr(self.chances, f"{name}_hourly")
        count = 1 if name in ("storms", "outages") else self.size.machines
        if not share:
            return
        delay_ms = round(self.random.expovariate(share * count) * HOUR_MS)

        def strike() -> None:
            if not self.calm:
                self.weather.struck[name] = self.weather.struck.get(name, 0) + 1
                getattr(self, f"_strike_{name}")()
                self._expect(name)

        self.clock.at(self.clock.now_ms + delay_ms, strike)

    def _any_agent(self) -> Agent | None:
        present = [agent for agent in self.agents.values() if not agent.gone]
        return self.random.choice(present) if present else None

    def _strike_agent_restarts(self) -> None:
        if agent := self._any_agent():
            agent.start()

    def _strike_reboots(self) -> None:
        if agent := self._any_agent():
            agent.reboot(self.random.randint(0, 3))

    def _strike_losses(self) -> None:
        if agent := self._any_agent():
            self._end(agent)

    def _strike_zombies(self) -> None:
        if agent := self._any_agent():
            agent.cut_off = True

            def back() -> None:
                agent.cut_off = False

            length_ms = self.random.randint(LEASE_MS, 10 * LEASE_MS)
            self.clock.at(self.clock.now_ms + length_ms, back)

    def _strike_notices(self) -> None:
        if agent := self._any_agent():
            self._give_notice(agent, self.random.choice(NOTICES_MS))

    def _strike_storms(self) -> None:
        left_ms = self.random.choice((0, *NOTICES_MS))
        for agent in list(self.agents.values()):
            if not agent.gone and self.random.random() < 0.8:
                if left_ms:
                    self._give_notice(agent, left_ms)
                else:
                    self._end(agent)

    def _strike_outages(self) -> None:
        self.network.out = True

        def over() -> None:
            self.network.out = False

        length_ms = self.random.randint(LEASE_MS, 6 * LEASE_MS)
        self.clock.at(self.clock.now_ms + length_ms, over)

    def _give_notice(self, agent: Agent, left_ms: int) -> None:
        agent.notify(Notice(self.clock.now_ms + left_ms))
        self.clock.at(self.clock.now_ms + left_ms, lambda: self._end(agent))

    def _end(self, agent: Agent) -> None:
        """The machine is gone, and another one comes in its place."""
        if not agent.gone:
            agent.vanish()
            self._boot(agent.pool)

    def _may_calm(self) -> bool:
        people = self.people
        if self.clock.now_ms >= self.size.hours * HOUR_MS:
            return True
        everybody = people.asked == self.size.experiments == len(people.accepted)
        return everybody and all(state.status.final for state in self.shadow.states("experiment"))

    def _calm_down(self) -> None:
        """No more faults."""
        self.calm = True
        self.weather.chances = NONE
        self.weather.stale = None
        self.network.out = False
        for agent in self.agents.values():
            agent.cut_off = False
        self._insist_on_the_end()

    def _insist_on_the_end(self) -> None:
        self.people.activate_all()
        self.clock.at(self.clock.now_ms + 10 * TICK_MS, self._insist_on_the_end)

    def _is_over(self) -> bool:
        if not self.calm or not self._may_calm_for_good():
            return False
        agents = (agent for agent in self.agents.values() if not agent.gone)
        return not self.shadow.mail() and not any(agent.runs for agent in agents)

    def _may_calm_for_good(self) -> bool:
        people = self.people
        if people.asked < self.size.experiments or len(people.accepted) < people.asked:
            return False
        return all(state.status.final for state in self.shadow.states("experiment"))

    def describe(self) -> str:
        """What is left, for whoever looks into a run that does not end."""
        runs = {a.name: list(a.runs) for a in self.agents.values() if a.runs and not a.gone}
        open_ones = [s for s in self.shadow.states("experiment") if not s.status.final]
        trials = [s for s in self.shadow.states("trial") if not s.status.final]
        return f"mail {self.shadow.mail()[:5]}, runs {runs}, {open_ones[:2]}, {trials[:3]}"


def names(agents: Iterable[Agent]) -> list[str]:
    """Of those that are still there."""
    return [agent.name for agent in agents if not agent.gone]
