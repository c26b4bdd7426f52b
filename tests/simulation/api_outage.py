"""A cloud pool with only busy machines when the API goes down, for tests and the bench."""

import json
from dataclasses import asdict
from pathlib import Path

from control_plane.actors.messages.pool import PoolSettings
from control_plane.fleet.records import InstanceState
from control_plane.fleet.rows import read_instances
from simulator.faults.fault_rates import NO_FAULTS
from simulator.machines.cloud import offerings
from simulator.seeded.pool_sampler import RULES
from simulator.seeded.searches import parallel_random_search
from simulator.seeded.simulated_cluster import TICK_MS, ClusterSize, SimulatedCluster

MINUTE_MS = 60_000
POOL = "pool-0"
CHECKED_MACHINES_MAX = 10
# Time by which all machines have booted and train.
BUSY_MS = 6 * MINUTE_MS
# Time by which all agents are back and a tick has marked missing agents as lost.
BACK_MS = 5 * MINUTE_MS


class OutageCluster(SimulatedCluster):
    """A cluster with `machines` trials of some hours, and an API outage once all trials run.

    Each trial has a machine of its own. `offset_ms` shifts the outage against the minute of the
    ticks. `busy`: number of agents with work at the start of the outage. `ended`: names of machines
    without work BACK_MS after the outage.
    """

    def __init__(self, machines: int, outage_ms: int, folder: Path, offset_ms: int = 0) -> None:
        self.trials = machines
        self.outage_ms = outage_ms
        self.began_ms = BUSY_MS + offset_ms
        self.busy = 0
        self.ended: list[str] = []
        # Checks of every commit would dominate the run of a large cluster.
        is_large = machines > CHECKED_MACHINES_MAX
        size = ClusterSize(experiments=1, pools=1)
        super().__init__(1, NO_FAULTS, size, folder, unchecked=is_large)

    def run_outage(self) -> None:
        """Run the cluster until BACK_MS after the outage, and fill `ended`."""
        self._start()
        until_ms = self.began_ms + self.outage_ms + BACK_MS
        while self.clock.run_next(until_ms):
            continue
        self._count_ended()

    @property
    def restart_count(self) -> int:
        """Number of lost and failed runs of all trials."""
        trials = self.checker.actor_states("trial")
        return sum(trial.losses + trial.restarts for trial in trials)

    def _sample_pool(self, number: int) -> PoolSettings:
        self.cloud.catalog = offerings(1)
        fields = {
            "type": "fake",
            "min_instances": 0,
            "max_instances": self.trials,
            "max_idle_agent_period": "5m",
            "max_agent_starting_period": "5m",
            "offerings": [asdict(offering) for offering in self.cloud.catalog],
        }
        return PoolSettings(RULES[0], provider=json.dumps(fields))

    def _start(self) -> None:
        self._configure_pool(POOL, self.pools[POOL])
        self.users.are_quiet = True
        # The shortest training takes more than 1.5 hours, so that all trials outlast the outage.
        search = parallel_random_search(self.trials, 1, batch_seconds=7_200.0)
        self.clock.call_at(MINUTE_MS, lambda: self.users.submit(search, POOL, 0))
        self.clock.call_at(TICK_MS, self._tick)
        self.clock.call_at(self.began_ms, self._begin_outage)
        self.clock.call_at(self.began_ms + self.outage_ms, self.network.start_api)

    def _begin_outage(self) -> None:
        self.busy = sum(bool(agent.used_slots()) for agent in self.machines.present_agents())
        self.network.stop_api()

    def _count_ended(self) -> None:
        working = {row.id for row in read_instances(self.rows, POOL) if self._is_working(row.id)}
        self.ended = sorted(set(self.cloud.machines) - working)

    def _is_working(self, name: str) -> bool:
        agent = self.machines.agents.get(name)
        rows = [row for row in read_instances(self.rows, POOL) if row.id == name]
        is_running = bool(rows) and rows[0].state is InstanceState.RUNNING
        return is_running and agent is not None and not agent.is_gone and bool(agent.used_slots())
