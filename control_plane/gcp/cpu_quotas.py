"""The regional quotas of Compute Engine for vCPUs, by machine series and market.

The names are those of the API's `Quota.metric` (compute v1). E2 and N1 share a quota; each other
series in the API's list has its own. Newer series are missing from the list: a quota per family
counts them, which only the console and Cloud Quotas show. Spot instances of all series share a
quota. In a project that never requested this quota, they count against the on-demand quota.
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
    """Return the name of the quota that counts the vCPUs of a machine type in a market.

    On the spot market, all types have SPOT_CPUS. On demand, E2 and N1 have CPUS, and a series in
    _OWN has its own quota, such as N2_CPUS. Every other series, unknown ones included, has the
    quota per family, FAMILY_CPUS.
    """
    if market is Market.SPOT:
        return SPOT_CPUS
    family = machine_series(machine_type)
    if family in _SHARING:
        return _SHARED
    return f"{family.upper()}_CPUS" if family in _OWN else FAMILY_CPUS
