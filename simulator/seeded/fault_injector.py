"""The injector of faults into machines, the cloud and the network, at the rates of a run."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from control_plane.fleet.records import Market
from control_plane.simulation.virtual_clock import VirtualClock
from simulator.faults.fault_rates import HOUR_MS, FaultRates
from simulator.faults.fault_state import FaultState
from simulator.hosts.network import Network
from simulator.machines.agent import SimulatedAgent
from simulator.machines.cloud import ZONES, SimulatedCloud, cloud_rules
from simulator.machines.machines import Machines

LEASE_MS = 30_000
# Google Cloud announces the end of a machine 30 s ahead, and AWS 120 s.
NOTICES_MS = (30_000, 120_000)
STORM_SHARE = 0.8
API_OUTAGE_MS = (LEASE_MS, 3_600_000)
SHORTAGE_MS = (600_000, 3_600_000)
QUOTA_SLOTS_MAX = 4
# The faults whose rate is for the whole cluster, not for each machine.
_OF_CLUSTER = frozenset(
    {"storms", "outages", "api_outages", "quota_changes", "failed_batches", "zone_losses"}
)


class FaultInjector:
    """A scheduler of faults, which injects a fault while the fault's current rate is above 0.

    Args:
        random: the source of the times and of the affected machines.
        notices_ms: the possible times between a notice and the machine's end.
    """

    def __init__(
        self,
        clock: VirtualClock,
        faults: FaultState,
        machines: Machines,
        network: Network,
        cloud: SimulatedCloud,
        random: Random,
        notices_ms: Sequence[int] = NOTICES_MS,
    ) -> None:
        self._clock = clock
        self._notices_ms = notices_ms
        self._faults = faults
        self._machines = machines
        self._network = network
        self._cloud = cloud
        self._random = random
        self._rates: FaultRates = faults.rates
        self._injections: dict[str, Callable[[], None]] = {
            "agent_restarts": lambda: self._inject_into_one_agent(SimulatedAgent.start),
            "reboots": lambda: self._inject_into_one_agent(
                lambda agent: agent.reboot(random.randint(0, 3))
            ),
            "flapping_devices": lambda: self._inject_into_one_agent(self._break_device),
            "bad_networks": lambda: self._inject_into_one_agent(self._break_network),
            "losses": lambda: self._inject_into_one_agent(machines.lose_machine),
            "zombies": lambda: self._inject_into_one_agent(self._partition_agent),
            "notices": lambda: self._inject_into_one_agent(self._give_notice),
            "storms": self._end_most_machines,
            "outages": self._start_outage,
            "api_outages": self._stop_api,
            "quota_changes": self._cut_quotas,
            "failed_batches": self._fail_boots,
            "zone_losses": self._lose_zone,
        }

    def start(self, machines: int) -> None:
        """Schedule the first fault of each kind with a rate above 0.

        Each fault schedules the next fault of the kind.

        Args:
            machines: the approximate number of machines, which multiplies the rates per machine.
        """
        for name in self._injections:
            rate = getattr(self._rates, f"{name}_hourly")
            if rate:
                self._schedule_fault(name, rate if name in _OF_CLUSTER else rate * machines)

    def _schedule_fault(self, name: str, hourly: float) -> None:
        """Schedule a fault after a random time, at an average of `hourly` faults per hour.

        Each injected fault schedules the next fault with the same average. If the current rate is
        0 when the fault is due, inject nothing and schedule nothing more. Other changes of the rate
        have no effect.

        Args:
            name: a key of the injections, like `reboots`.
            hourly: above 0.
        """

        def inject() -> None:
            if getattr(self._faults.rates, f"{name}_hourly"):
                self._faults.count_fault(name)
                self._injections[name]()
                self._schedule_fault(name, hourly)

        self._call_later(round(self._random.expovariate(hourly) * HOUR_MS), inject)

    def _inject_into_one_agent(self, inject: Callable[[SimulatedAgent], None]) -> None:
        """Inject a fault into a random agent without a notice. Do nothing without such an agent."""
        agents = self._agents_without_notice()
        if agents:
            inject(self._random.choice(agents))

    def _agents_without_notice(self) -> list[SimulatedAgent]:
        """Return the present agents without a notice, because a cloud does not revoke a notice."""
        return [agent for agent in self._machines.present_agents() if not agent.has_notice]

    def _partition_agent(self, agent: SimulatedAgent) -> None:
        """Cut an agent off from the API for 1 to 10 lease lengths."""
        agent.is_cut_off = True

        def reconnect() -> None:
            agent.is_cut_off = False

        self._call_later(self._random.randint(LEASE_MS, 10 * LEASE_MS), reconnect)

    def _break_device(self, agent: SimulatedAgent) -> None:
        """Break a random slot of a machine, or the whole machine, for up to 20 minutes."""
        slot = self._random.randrange(-1, agent.slots)
        agent.break_device(None if slot < 0 else slot, self._random.randint(1, 20 * 60_000))

    def _break_network(self, agent: SimulatedAgent) -> None:
        """Let a machine fail the checks of gangs for up to three hours."""
        agent.break_network(self._random.randint(1, 3 * HOUR_MS))

    def _give_notice(self, agent: SimulatedAgent) -> None:
        self._machines.give_notice(agent, self._random.choice(self._notices_ms))

    def _end_most_machines(self) -> None:
        """End each machine with the probability STORM_SHARE, all at the same time.

        All of them get a notice of the same random length, or none of them gets a notice. Machines
        with an earlier notice are skipped.
        """
        left_ms = self._random.choice((0, *self._notices_ms))
        for agent in self._agents_without_notice():
            if self._random.random() >= STORM_SHARE:
                continue
            if left_ms:
                self._machines.give_notice(agent, left_ms)
            else:
                self._machines.lose_machine(agent)

    def _start_outage(self) -> None:
        """Cut all agents and users off from the API for 1 to 6 lease lengths."""
        self._network.is_down = True

        def end_outage() -> None:
            self._network.is_down = False

        self._call_later(self._random.randint(LEASE_MS, 6 * LEASE_MS), end_outage)

    def _stop_api(self) -> None:
        """Stop the API for a time within API_OUTAGE_MS. The tick notices this outage."""
        self._network.stop_api()
        self._call_later(self._random.randint(*API_OUTAGE_MS), self._network.start_api)

    def _cut_quotas(self) -> None:
        """Limit the slots of each market by a small quota for a time within SHORTAGE_MS."""
        cloud, random = self._cloud, self._random
        cloud.quota = {market: random.randint(0, QUOTA_SLOTS_MAX) for market in Market}
        self._call_later(random.randint(*SHORTAGE_MS), cloud.quota.clear)

    def _fail_boots(self) -> None:
        """Make the cloud launch machines that never boot, for a random time within SHORTAGE_MS.

        Machines of later launches boot again. Machines launched before are not affected.
        """
        self._cloud.rules = replace(self._cloud.rules, never_boots_share=1.0)

        def boot_again() -> None:
            self._cloud.rules = cloud_rules(self._faults)

        self._call_later(self._random.randint(*SHORTAGE_MS), boot_again)

    def _lose_zone(self) -> None:
        """End all cloud machines of a random zone, and allow no launches in this zone.

        The zone allows launches again after a random time within SHORTAGE_MS.
        """
        zone = self._random.choice(ZONES)
        self._cloud.lost_zones.add(zone)
        self._machines.lose_zone(zone)
        self._call_later(
            self._random.randint(*SHORTAGE_MS), lambda: self._cloud.lost_zones.discard(zone)
        )

    def _call_later(self, delay_ms: int, action: Callable[[], None]) -> None:
        self._clock.call_at(self._clock.now_ms + delay_ms, action)
