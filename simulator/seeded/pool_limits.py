"""The limits of sampled pools: the sizes and numbers of machines."""

import json

from control_plane.actors.messages.pool import PoolSettings
from simulator.checks.fleet_checker import FleetLimits
from simulator.seeded.searches import PoolCapacity

# The slots of the largest static machine in a pool.
STATIC_SLOTS_MAX = 4


def fleet_limits(settings: PoolSettings) -> FleetLimits:
    """Return the limits of a pool with a provider."""
    fields = json.loads(settings.provider)
    sizes = dict.fromkeys(offering["slots"] for offering in fields["offerings"])
    return FleetLimits(tuple(sizes), fields["min_instances"], fields["max_instances"])


def pool_capacity(settings: PoolSettings) -> PoolCapacity:
    """Return the size and number of a pool's largest machines; without a provider, a single one."""
    if not settings.provider:
        return PoolCapacity(STATIC_SLOTS_MAX)
    limits = fleet_limits(settings)
    return PoolCapacity(max(limits.sizes), limits.instances_max)
