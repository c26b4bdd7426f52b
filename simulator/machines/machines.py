"""The machines of a simulated cluster.

A lost static machine is replaced at once. The provisioner launches and terminates the machines of
the cloud.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random

from control_plane.agents.leases import OUTAGE_MS_MAX
from control_plane.fleet.rows import read_instances, read_intents
from control_plane.simulation.virtual_clock import VirtualClock
from control_plane.state.memory import MemoryTable
from provisioner.clouds.fake.provider import FakeMachine
from provisioner.clouds.provider import POOL_TAG
from simulator.checks.instance_checker import InstanceChecker
from simulator.checks.state_checker import InvariantBroken
from simulator.hosts.outage_checker import OutageChecker
from simulator.machines.agent import AgentEnvironment, SimulatedAgent
from simulator.machines.cloud import SimulatedCloud
from simulator.machines.process_environment import EndNotice

# A cloud machine that cannot reach the cluster for this long shuts itself down. A machine with
# processes or unacknowledged reports waits for ALONE_BUSY_MS_MAX.
ALONE_MS_MAX = 600_000
ALONE_BUSY_MS_MAX = OUTAGE_MS_MAX
BOOT_MS_MAX = 60_000


@dataclass(frozen=True, slots=True)
class StaticMachines:
    """Machines of a pool that a user has set up, without a cloud (static machines)."""

    pool: str
    slots: tuple[int, ...]
    """The number of slots of each machine."""


class Machines:
    """The machines of the cluster, with all agents that ever existed.

    The constructor sets the cloud's callbacks.

    Args:
        rows: the state table without faults.
        start_ms: the epoch time at which the virtual clock was 0.

    Attributes:
        agents: all agents by name, including ended ones.
        have_older_agents: whether the agents of machines that boot later are of a release that
            ignores a dead tick.
        instance_checker: checks and counts the cloud's machines.
    """

    def __init__(
        self,
        environment: AgentEnvironment,
        cloud: SimulatedCloud,
        rows: MemoryTable,
        start_ms: int,
    ) -> None:
        self.agents: dict[str, SimulatedAgent] = {}
        self.have_older_agents = False
        self.outage_checker = OutageChecker(environment.network, environment.clock, start_ms)
        self.instance_checker = InstanceChecker(rows, cloud, lambda: environment.clock.now_ms)
        self._environment = environment
        self._clock: VirtualClock = environment.clock
        self._random: Random = environment.faults.random
        self._cloud = cloud
        self._rows = rows
        self._start_ms = start_ms
        self._static_count = 0
        self._slots_seen = 0
        self._slots_held = 0
        self._booted_ids: set[str] = set()
        cloud.on_machine_change = self.follow_machine
        cloud.call_later = self._call_later
        cloud.on_terminate = self._check_termination

    @property
    def utilisation(self) -> float:
        """The average share of the machines' slots that processes used. 0 without machines."""
        return self._slots_held / self._slots_seen if self._slots_seen else 0.0

    def present_agents(self) -> list[SimulatedAgent]:
        """Return the agents whose machines have not ended."""
        return [agent for agent in self.agents.values() if not agent.is_gone]

    def add_static_machines(self, machines: StaticMachines) -> None:
        """Add machines, which boot after random times of up to BOOT_MS_MAX."""
        for slots in machines.slots:
            self._static_count += 1
            agent = self._add_agent(f"fixed-{self._static_count}", machines.pool, slots)
            self._call_later(self._random.randint(0, BOOT_MS_MAX), agent.start)

    def follow_machine(self, machine: FakeMachine) -> None:
        """Schedule the boot of a new cloud machine, and the end of a machine that will end.

        Give a running agent notice of the end. Repeated calls do not repeat the boot.
        """
        if machine.id not in self._booted_ids:
            self._booted_ids.add(machine.id)
            if machine.boots_ms is not None:
                self._call_at(machine.boots_ms, lambda: self._boot(machine))
        if machine.gone_ms is not None:
            gone_ms = machine.gone_ms
            self._call_at(gone_ms, lambda: self._remove_machine(machine))
            agent = self.agents.get(machine.id)
            if agent is not None:
                agent.give_notice(EndNotice(gone_ms - self._start_ms))

    def lose_machine(self, agent: SimulatedAgent) -> None:
        """End an agent's machine immediately, without a notice.

        A machine without a cloud (static) is replaced at once by a new machine of the same size in
        the same pool. A cloud's machine is not replaced here; the provisioner decides.
        """
        if agent.name in self._cloud.machines:
            self._cloud.interrupt(agent.name, None)
            self._remove_machine(self._cloud.machines[agent.name])
            return
        agent.vanish()
        self.add_static_machines(StaticMachines(agent.pool, (agent.slots,)))

    def lose_zone(self, zone: str) -> None:
        """End all cloud machines in a zone immediately, including machines that are starting."""
        for machine in list(self._cloud.live_machines()):
            if machine.offering.zone == zone:
                self._cloud.interrupt(machine.id, None)
                self._remove_machine(machine)

    def give_notice(self, agent: SimulatedAgent, left_ms: int) -> None:
        """Give notice to an agent now, and end the agent's machine after `left_ms`.

        A machine without a cloud (static) is replaced at the end by a new machine of the same size
        in the same pool. A cloud's machine is not replaced here; the provisioner decides.
        """
        if agent.name in self._cloud.machines:
            self._cloud.interrupt(agent.name, left_ms)
            self.follow_machine(self._cloud.machines[agent.name])
            return
        agent.give_notice(EndNotice(self._clock.now_ms + left_ms))
        self._call_later(left_ms, lambda: None if agent.is_gone else self.lose_machine(agent))

    def has_instances_or_intents(self, pools: Iterable[str]) -> bool:
        """Return whether any of the `pools` has instance rows or stored launch requests."""
        return any(
            read_instances(self._rows, pool) or read_intents(self._rows, pool) for pool in pools
        )

    def check_machines(self, pools: Iterable[str]) -> None:
        """Shut down cloud machines that nobody can use, and check the instances' owners.

        A machine without contact to the cluster shuts down, and a machine without a tick and work.
        Also update `utilisation`. Raises InvariantBroken; see InstanceChecker.

        Args:
            pools: all pools that may own instances.
        """
        for agent in self.present_agents():
            alone_ms = self._clock.now_ms - agent.synced_ms
            patient_ms = ALONE_BUSY_MS_MAX if agent.processes else ALONE_MS_MAX
            is_ending = agent.wants_end or alone_ms > patient_ms
            if agent.name in self._cloud.machines and is_ending:
                self._cloud.shut_down(agent.name)
        for agent in self.present_agents():
            self._slots_seen += agent.slots
            self._slots_held += agent.used_slots()
        self.instance_checker.check_owners(pools)

    def _boot(self, machine: FakeMachine) -> None:
        """Add and start the agent of a cloud machine, with a notice if the machine will end.

        Do nothing if the machine has ended meanwhile.
        """
        if machine.is_agent_up(self._start_ms + self._clock.now_ms):
            agent = self._add_agent(machine.id, machine.tags[POOL_TAG], machine.offering.slots)
            if not self.have_older_agents:
                agent.watch_tick()
            agent.start()
            if machine.gone_ms is not None:
                agent.give_notice(EndNotice(machine.gone_ms - self._start_ms))

    def _check_termination(self, name: str) -> None:
        """Check that the provisioner may terminate a machine.

        A machine with running processes may be terminated only if it is ending already, has a
        notice, or has an agent that connected once and is silent now. Raises InvariantBroken.
        """
        agent = self.agents.get(name)
        if agent is None or agent.is_gone or not agent.used_slots():
            return
        asked_ms = self._cloud.machines[name].asked_ms
        if asked_ms is not None and asked_ms < self._start_ms + self._clock.now_ms:
            # The machine is ending already. The cloud's list may not show this yet.
            return
        rows = [row for row in read_instances(self._rows, agent.pool) if row.id == name]
        self.outage_checker.check_termination(rows[0] if rows else None)
        if rows and rows[0].notice_ms is None:
            is_silent = rows[0].connected_ms is not None and rows[0].silent_ms is not None
            if not is_silent:
                raise InvariantBroken(f"{rows[0]} is ended while it works")

    def _remove_machine(self, machine: FakeMachine) -> None:
        """End the agent of a cloud machine that has ended. Do nothing if the machine still runs."""
        now_ms = self._start_ms + self._clock.now_ms
        agent = self.agents.get(machine.id)
        if agent is not None and not agent.is_gone and not machine.is_billed(now_ms):
            agent.vanish()

    def _add_agent(self, name: str, pool: str, slots: int) -> SimulatedAgent:
        agent = self.agents[name] = SimulatedAgent(self._environment, name, pool, slots)
        return agent

    def _call_at(self, epoch_ms: int, action: Callable[[], None]) -> None:
        self._clock.call_at(epoch_ms - self._start_ms, action)

    def _call_later(self, delay_ms: int, action: Callable[[], None]) -> None:
        self._clock.call_at(self._clock.now_ms + delay_ms, action)
