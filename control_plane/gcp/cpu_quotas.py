"""The quotas of a region that Compute Engine counts vCPUs against, by machine series and market.

Names are those of the API's `Quota.metric` (compute v1). E2 and N1 share one; other series that the
API lists have one of their own. Those of newer series are in no list of a region: one quota counts
each family, of which only the console and Cloud Quotas tell. Spot instances of all series share
one, and count against that of instances on demand where a project has none and never asked for any.
"""

from typing import Final

from control_plane.fleet.records import Market
from control_plane.gcp.machine_types import machine_series

ALL_REGIONS_CPUS: Final = "CPUS_ALL_REGIONS"
SPOT_CPUS: Final = "PREEMPTIBLE_CPUS"
FAMILY_CPUS: Final = "CPUS-PER-VM-FAMILY-per-project-region"
_SHARED: Final = "CPUS"
_SHARING: Final = frozenset({"e2", "n1"})
_OWN: Final = frozenset(["a2", "c2", "c2d", "c3", "m1", "m2", "m3", "n2", "n2d", "t2a", "t2d"])


def cpu_metric(machine_type: str, market: Market) -> str:
    """The quota that counts the vCPUs of a machine type in a market."""
    if market is Market.SPOT:
        return SPOT_CPUS
    family = machine_series(machine_type)
    if family in _SHARING:
        return _SHARED
    return f"{family.upper()}_CPUS" if family in _OWN else FAMILY_CPUS
