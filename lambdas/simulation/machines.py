"""The machines of a simulated cluster: those that somebody has set up, of which each that goes is
replaced, and those of a cloud, which come and go as the provisioner wants them.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random

from control_plane.fleet.records import InstanceState
from control_plane.fleet.rows import instances, intents
from control_plane.simulation.clock import Clock
from control_plane.state.memory import MemoryTable
from lambdas.simulation.agent import Agent, Surroundings
from lambdas.simulation.cloud import SimulatedCloud
from lambdas.simulation.process import Notice
from lambdas.simulation.watch import InvariantBroken
from provisioner.clouds.fake import Machine
from provisioner.clouds.provider import INTENT_TAG, POOL_TAG

# A cloud's machine that has not reached the cluster for so long shuts down.
ALONE_MS_MAX = 600_000
ORPHAN_MS_MAX = 300_000
BOOT_MS_MAX = 60_000


@dataclass(frozen=True, slots=True)
class Fixed:
    """Machines that somebody has set up in a pool, by their slots."""

    pool: str
    slots: tuple[int, ...]


class Machines:
    """All agents there ever were, by name. `start_ms` is the virtual clock's 0 as epoch ms."""

    def __init__(
        self, surroundings: Surroundings, cloud: SimulatedCloud, rows: MemoryTable, start_ms: int
    ) -> None:
        self.agents: dict[str, Agent] = {}
        self.orphans = 0
        self.leaked = 0
        self._surroundings = surroundings
        self._clock: Clock = surroundings.clock
        self._random: Random = surroundings.weather.random
        self._cloud = cloud
        self._rows = rows
        self._start_ms = start_ms
        self._fixed = 0
        self._slots_seen = 0
        self._slots_held = 0
        self._orphan_since_ms: dict[str, int] = {}
        self._booted: set[str] = set()
        cloud.heard = self.heard
        cloud.later = self._later
        cloud.given_up = self._given_up

    @property
    def utilisation(self) -> float:
        """The share of the machines' slots that processes had, over all looks."""
        return self._slots_held / self._slots_seen if self._slots_seen else 0.0

    def present(self) -> list[Agent]:
        """The agents whose machines are there."""
        return [agent for agent in self.agents.values() if not agent.gone]

    def set_up(self, fixed: Fixed) -> None:
        """Somebody sets machines up."""
        for slots in fixed.slots:
            self._fixed += 1
            agent = self._added(f"fixed-{self._fixed}", fixed.pool, slots)
            self._later(self._random.randint(0, BOOT_MS_MAX), agent.start)

    def heard(self, machine: Machine) -> None:
        """The cloud has a machine that is new, or that begins to end."""
        if machine.id not in self._booted:
            self._booted.add(machine.id)
            if machine.boots_ms is not None:
                self._at(machine.boots_ms, lambda: self._boot(machine))
        if machine.gone_ms is not None:
            gone_ms = machine.gone_ms
            self._at(gone_ms, lambda: self._gone(machine))
            agent = self.agents.get(machine.id)
            if agent is not None:
                agent.notify(Notice(gone_ms - self._start_ms))

    def lose(self, agent: Agent) -> None:
        """The machine is gone at once."""
        if agent.name in self._cloud.machines:
            self._cloud.interrupt(agent.name, None)
            self._gone(self._cloud.machines[agent.name])
            return
        agent.vanish()
        self.set_up(Fixed(agent.pool, (agent.slots,)))

    def give_notice(self, agent: Agent, left_ms: int) -> None:
        """The machine will be gone after a while, and is told so."""
        if agent.name in self._cloud.machines:
            self._cloud.interrupt(agent.name, left_ms)
            self.heard(self._cloud.machines[agent.name])
            return
        agent.notify(Notice(self._clock.now_ms + left_ms))
        self._later(left_ms, lambda: None if agent.gone else self.lose(agent))

    def claimed(self, pools: Iterable[str]) -> bool:
        """Whether the provisioner has any instances, or has asked for some."""
        return any(instances(self._rows, it) or intents(self._rows, it) for it in pools)

    def look(self, pools: Iterable[str]) -> None:
        """What a machine does by itself, and what must hold of all of them.

        Raises:
            InvariantBroken: an instance that nobody claims lives on.
        """
        for agent in self.present():
            alone_ms = self._clock.now_ms - agent.synced_ms
            if agent.name in self._cloud.machines and alone_ms > ALONE_MS_MAX:
                self._cloud.end(agent.name)
        for agent in self.present():
            self._slots_seen += agent.slots
            self._slots_held += agent.held_slots()
        self._look_for_orphans(pools)

    def check_maximum(self, pool: str, instances_max: int) -> None:
        """No more instances are there or asked for than the pool may have."""
        counted = [
            row
            for row in instances(self._rows, pool)
            if row.state is not InstanceState.TERMINATING and row.notice_ms is None
        ]
        coming = sum(intent.count for intent in intents(self._rows, pool))
        if len(counted) + coming > instances_max:
            text = f"pool {pool} has {len(counted)} instances and {coming} are asked for"
            raise InvariantBroken(f"{text}; it may have {instances_max}")

    def _look_for_orphans(self, pools: Iterable[str]) -> None:
        living = {machine.id: machine for machine in self._cloud.living()}
        if not living and not self._orphan_since_ms:
            return
        known = {row.id for pool in pools for row in instances(self._rows, pool)}
        open_ones = {(pool, it.id) for pool in pools for it in intents(self._rows, pool)}
        for name in [name for name in self._orphan_since_ms if name not in living]:
            del self._orphan_since_ms[name]
        for name, machine in living.items():
            intent = (machine.tags[POOL_TAG], machine.tags[INTENT_TAG])
            if name in known or intent in open_ones:
                self._orphan_since_ms.pop(name, None)
                continue
            if name not in self._orphan_since_ms:
                self.orphans += 1
            since_ms = self._orphan_since_ms.setdefault(name, self._clock.now_ms)
            if self._clock.now_ms - since_ms > ORPHAN_MS_MAX:
                self.leaked += 1
                raise InvariantBroken(f"instance {name} is nobody's: {machine}")

    def _boot(self, machine: Machine) -> None:
        if machine.agent_is_up(self._start_ms + self._clock.now_ms):
            agent = self._added(machine.id, machine.tags[POOL_TAG], machine.offering.slots)
            agent.start()
            if machine.gone_ms is not None:
                agent.notify(Notice(machine.gone_ms - self._start_ms))

    def _given_up(self, name: str) -> None:
        """Nobody ends a machine for an agent that never came when it has come and works."""
        agent = self.agents.get(name)
        if agent is None or agent.gone or not agent.held_slots():
            return
        rows = [row for row in instances(self._rows, agent.pool) if row.id == name]
        if rows and rows[0].connected_ms is None and rows[0].notice_ms is None:
            raise InvariantBroken(f"{rows[0]} is ended while it works")

    def _gone(self, machine: Machine) -> None:
        now_ms = self._start_ms + self._clock.now_ms
        agent = self.agents.get(machine.id)
        if agent is not None and not agent.gone and not machine.lives(now_ms):
            agent.vanish()

    def _added(self, name: str, pool: str, slots: int) -> Agent:
        agent = self.agents[name] = Agent(self._surroundings, name, pool, slots)
        return agent

    def _at(self, epoch_ms: int, action: Callable[[], None]) -> None:
        self._clock.at(epoch_ms - self._start_ms, action)

    def _later(self, delay_ms: int, action: Callable[[], None]) -> None:
        self._clock.at(self._clock.now_ms + delay_ms, action)
