"""A cloud pool with busy and idle machines whose tick stops for a while, for tests."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from control_plane.actors.messages.pool import PoolSettings
from control_plane.actors.trial.state import TrialState
from simulator.faults.fault_rates import NO_FAULTS
from simulator.machines.agent import SimulatedAgent
from simulator.machines.cloud import offerings
from simulator.seeded.pool_sampler import RULES
from simulator.seeded.searches import parallel_random_search
from simulator.seeded.simulated_cluster import TICK_MS, ClusterSize, SimulatedCluster

MINUTE_MS = 60_000
POOL = "pool-0"
MACHINES = 4
TRIALS = 2
# Time by which all machines have booted, and the trials train.
DEAD_MS = 10 * MINUTE_MS


class DeadTickCluster(SimulatedCluster):
    """A cluster whose tick dies DEAD_MS after the start, with two busy and two idle machines.

    The pool keeps MACHINES machines of one slot, so that idle machines stay while the tick runs.
    """

    def __init__(self, folder: Path) -> None:
        self.starts = Counter[str]()
        super().__init__(1, NO_FAULTS, ClusterSize(experiments=1, pools=1), folder)

    def start(self) -> None:
        """Start the cluster, and let the tick die later."""
        self._start()

    def run_until(self, minutes: int) -> None:
        """Run the cluster until this number of minutes after the tick died."""
        while self.clock.run_next(DEAD_MS + minutes * MINUTE_MS):
            continue

    def submit(self, trials: int, batch_seconds: float) -> None:
        """Submit an experiment. The average batch of the trials lasts `batch_seconds`."""
        search = parallel_random_search(trials, self.users.submissions, batch_seconds)
        self.users.submit(search, POOL, self.users.submissions)

    def machine_names(self) -> set[str]:
        """Return the names of the machines that the cloud bills."""
        return {machine.id for machine in self.cloud.live_machines()}

    def busy_machine_names(self) -> set[str]:
        """Return the names of the machines with running trials."""
        agents = self.machines.present_agents()
        return {agent.name for agent in agents if agent.used_slots()}

    def trials(self) -> list[TrialState]:
        """Return the states of all trials, in the order of ids."""
        trials = self.checker.actor_states("trial")
        return sorted(trials, key=lambda trial: trial.trial_id)

    def _sample_pool(self, number: int) -> PoolSettings:
        self.cloud.catalog = offerings(1)
        fields = {
            "type": "fake",
            "min_instances": MACHINES,
            "max_instances": MACHINES,
            "max_idle_agent_period": "5m",
            "max_agent_starting_period": "5m",
            "offerings": [asdict(offering) for offering in self.cloud.catalog],
        }
        return PoolSettings(RULES[1], provider=json.dumps(fields))

    def _start(self) -> None:
        self._configure_pool(POOL, self.pools[POOL])
        self.users.are_quiet = True
        # The trials train for 130 to 260 min.
        self.clock.call_at(MINUTE_MS, lambda: self.submit(TRIALS, 150.0))
        self.clock.call_at(TICK_MS, self._tick)
        self.clock.call_at(DEAD_MS, self._stop_tick)

    def _stop_tick(self) -> None:
        self.is_tick_dead = True

    def _check_process_start(self, agent: SimulatedAgent, spec: Mapping[str, Any]) -> None:
        super()._check_process_start(agent, spec)
        self.starts[spec["allocation_id"]] += 1
