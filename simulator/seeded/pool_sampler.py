"""The settings of the pools of a simulated cluster."""

import json
from dataclasses import asdict
from random import Random

from control_plane.actors.messages.pool import LogExclusionRules, PoolSettings
from control_plane.scheduling.model import SchedulerRules
from control_plane.simulation.hash_fractions import hash_fraction
from simulator.faults.fault_rates import HOUR_MS
from simulator.machines.cloud import SimulatedCloud, offerings

# The pool reserves slots for a job that has waited this long.
RESERVE_AFTER_MS = 10 * 60_000
# The slots of a pool's cloud machines, in order of preference.
CLOUD_SIZES = ((1,), (2,), (4,), (4,), (4, 1), (1, 4), (3, 2))
LOG_EXCLUSIONS_SHARE = 0.5
"""The share of pools in which log policies exclude machines from the pool."""
ON_DEMAND_BASES = (0.0, 0.0, 0.25, 0.5, 1.0)
RULES = (
    SchedulerRules("fair_share"),
    SchedulerRules("priority"),
    SchedulerRules("priority", preemption=True),
    SchedulerRules("round_robin", fitting="worst"),
)


class PoolSampler:
    """Samples the settings of pools.

    Args:
        seed: the seed of the cluster.
        random: the source of most choices.
        cloud: the cloud, whose catalog gets the offerings of the pools.
        machines_max: the maximum number of machines of a static pool.
    """

    def __init__(self, seed: int, random: Random, cloud: SimulatedCloud, machines_max: int) -> None:
        self.seed = seed
        self.random = random
        self.cloud = cloud
        self.machines_max = machines_max

    def sample(self, number: int) -> PoolSettings:
        """Sample the settings of a pool: the scheduler, the exclusion of machines by log policies,
        and possibly a cloud that has the machines.

        The first pool always has a cloud. A cloud offers machines of one or two sizes, which are
        added to the simulated cloud's catalog.
        """
        rules = self.random.choice(RULES)
        excludes = hash_fraction(self.seed, "exclusions", number) < LOG_EXCLUSIONS_SHARE
        by_log = LogExclusionRules(HOUR_MS) if excludes else None
        if number and self.random.random() < 0.5:
            return PoolSettings(
                rules,
                reserve_after_ms=RESERVE_AFTER_MS,
                stores_idle_jobs_apart=True,
                log_exclusion=by_log,
            )
        sizes = self.random.choice(CLOUD_SIZES)
        catalog = tuple(offering for slots in sizes for offering in offerings(slots))
        self.cloud.catalog = tuple(dict.fromkeys((*self.cloud.catalog, *catalog)))
        fields = {
            "type": "fake",
            "min_instances": self.random.choice((0, 0, 1)),
            "max_instances": self.random.randint(2, self.machines_max + 1),
            "max_idle_agent_period": "5m",
            "max_agent_starting_period": "5m",
            "launch_error_limit": 0,
            "on_demand_base": self.random.choice(ON_DEMAND_BASES),
            "offerings": [asdict(offering) for offering in catalog],
        }
        return PoolSettings(
            rules,
            provider=json.dumps(fields),
            reserve_after_ms=RESERVE_AFTER_MS,
            stores_idle_jobs_apart=True,
            log_exclusion=by_log,
        )
