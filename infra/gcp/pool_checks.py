"""Checks of the resource pools against the stack that their instances are to run in, which need
nobody's answer.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from control_plane.config.pools import ClusterConfig
from control_plane.gcp.pool_provider import GcpProvider
from control_plane.gcp.zones import region_of
from infra.gcp.names import Names
from infra.gcp.settings import Settings
from infra.gcp.trial_access import find_unknown_pools
from infra.pool_types import OTHER_TYPE_REMEDY, find_other_types


def gcp_pools(cluster: ClusterConfig) -> Iterator[tuple[str, GcpProvider]]:
    """Yield the name and the provider of each pool whose instances are Compute Engine's."""
    for pool in cluster.resource_pools:
        if isinstance(pool.provider, GcpProvider):
            yield pool.pool_name, pool.provider


@dataclass(frozen=True)
class PoolPlace:
    """The place of pools: the `names` of the cluster in its project, the `regions` that have
    subnetworks, the setting that says the project, and the one that adds a region.
    """

    names: Names
    regions: tuple[str, ...]
    project_setting: str
    region_setting: str


def find_pool_problems(settings: Settings, cluster: ClusterConfig) -> list[str]:
    """Return what pools say that cannot run in the stack, a line each."""
    where = "detcloud:network" if settings.network else "detcloud:regions"
    place = PoolPlace(settings.names, settings.subnetwork_regions, "detcloud:project", where)
    others = find_other_types(cluster, {"gcp", *settings.other_clouds}, OTHER_TYPE_REMEDY)
    remotes = settings.remote_accounts.values()
    elsewhere = [
        pool_problem for remote in remotes for pool_problem in remote.find_pool_problems(cluster)
    ]
    found = [
        f"pool {name}: {problem}"
        for name, problem in (
            *others,
            *(
                (name, problem)
                for name, provider in gcp_pools(cluster)
                for problem in find_place_problems(place, provider)
            ),
        )
    ]
    pools = [pool.pool_name for pool in cluster.resource_pools]
    strangers = find_unknown_pools(settings.task_accounts, pools, settings.cluster_config)
    return [*(f"{settings.cluster_config}: {text}" for text in (*found, *elsewhere)), *strangers]


def pool_region(own_region: str, provider: GcpProvider) -> str:
    """Return the region of a pool's instances; `own_region` is the default."""
    return provider.region or region_of(provider.zone) or own_region


def find_place_problems(place: PoolPlace, provider: GcpProvider) -> Iterator[str]:
    """Yield what a pool says that cannot be at its place."""
    names = place.names
    if provider.project not in ("", names.project):
        yield (
            f"provider.project is {provider.project}: expected {names.project}, as "
            f"{place.project_setting} says; leave it out"
        )
    if provider.name_prefix:
        yield (
            f"provider.name_prefix is {provider.name_prefix}: expected none, for the tick may end "
            f"instances alone whose names begin with {names.instance_prefix}; leave it out"
        )
    email = provider.service_account.email
    if email not in ("", names.email("instance")):
        yield (
            f"provider.service_account.email is {email}: expected none, for instances prove who "
            "they are by the cluster's own account, and it may give them no other; leave it out"
        )
    region = pool_region(names.region, provider)
    if region not in place.regions:
        known = ", ".join(place.regions)
        yield (
            f"its instances are to be in {region}: expected one of {known}, where there are "
            f"subnetworks for them; add it to {place.region_setting}"
        )
    for offering in provider.offerings:
        if offering.zone and region_of(offering.zone) != region:
            yield f"an offering is in the zone {offering.zone}: expected one of {region}"
