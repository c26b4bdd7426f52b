"""What strikes machines and the network, each as often as its chances say."""

from collections.abc import Callable
from random import Random

from control_plane.simulation.clock import Clock
from lambdas.simulation.agent import Agent
from lambdas.simulation.chances import HOUR_MS, Chances
from lambdas.simulation.disturbed import Weather
from lambdas.simulation.machines import Machines
from lambdas.simulation.network import Network

LEASE_MS = 30_000
# AWS gives 120 s, GCP 30 s.
NOTICES_MS = (30_000, 120_000)
STORM_SHARE = 0.8


class Calamities:
    """They begin with `begin` and strike no more once the weather has no chances for them."""

    def __init__(
        self,
        clock: Clock,
        weather: Weather,
        machines: Machines,
        network: Network,
        random: Random,
    ) -> None:
        self._clock = clock
        self._weather = weather
        self._machines = machines
        self._network = network
        self._random = random
        self._chances: Chances = weather.chances
        self._strikes: dict[str, Callable[[], None]] = {
            "agent_restarts": lambda: self._one(Agent.start),
            "reboots": lambda: self._one(lambda agent: agent.reboot(random.randint(0, 3))),
            "losses": lambda: self._one(machines.lose),
            "zombies": lambda: self._one(self._cut_off),
            "notices": lambda: self._one(self._give_notice),
            "storms": self._storm,
            "outages": self._outage,
        }

    def begin(self, machines: int) -> None:
        """From now on; `machines` is how many there are about."""
        for name in self._strikes:
            rate = getattr(self._chances, f"{name}_hourly")
            whole = name in ("storms", "outages")
            if rate:
                self._expect(name, rate if whole else rate * machines)

    def _expect(self, name: str, hourly: float) -> None:
        def strike() -> None:
            if getattr(self._weather.chances, f"{name}_hourly"):
                struck = self._weather.struck
                struck[name] = struck.get(name, 0) + 1
                self._strikes[name]()
                self._expect(name, hourly)

        self._later(round(self._random.expovariate(hourly) * HOUR_MS), strike)

    def _one(self, strike: Callable[[Agent], None]) -> None:
        present = self._present()
        if present:
            strike(self._random.choice(present))

    def _present(self) -> list[Agent]:
        """Machines whose end is not known yet: a cloud keeps its word."""
        return [agent for agent in self._machines.present() if not agent.noticed]

    def _cut_off(self, agent: Agent) -> None:
        agent.cut_off = True

        def back() -> None:
            agent.cut_off = False

        self._later(self._random.randint(LEASE_MS, 10 * LEASE_MS), back)

    def _give_notice(self, agent: Agent) -> None:
        self._machines.give_notice(agent, self._random.choice(NOTICES_MS))

    def _storm(self) -> None:
        left_ms = self._random.choice((0, *NOTICES_MS))
        for agent in self._present():
            if self._random.random() >= STORM_SHARE:
                continue
            if left_ms:
                self._machines.give_notice(agent, left_ms)
            else:
                self._machines.lose(agent)

    def _outage(self) -> None:
        self._network.out = True

        def over() -> None:
            self._network.out = False

        self._later(self._random.randint(LEASE_MS, 6 * LEASE_MS), over)

    def _later(self, delay_ms: int, action: Callable[[], None]) -> None:
        self._clock.at(self._clock.now_ms + delay_ms, action)
