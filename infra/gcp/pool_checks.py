"""Checks of resource pools against the settings of the stack. Pure."""

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
    """Yield the name and the provider of each pool that runs on Compute Engine."""
    for pool in cluster.resource_pools:
        if isinstance(pool.provider, GcpProvider):
            yield pool.pool_name, pool.provider


@dataclass(frozen=True)
class PoolPlace:
    """The project and regions in which pools must run."""

    names: Names
    """The cluster's names in the project."""
    regions: tuple[str, ...]
    """The regions with subnetworks."""
    project_setting: str
    """The setting that names the project, for messages."""
    region_setting: str
    """The setting that adds regions, for messages."""


def find_pool_problems(settings: Settings, cluster: ClusterConfig) -> list[str]:
    """Return a line for each problem of the cluster's pools; [] if all can run in the stack.

    Check the types of providers, the pools on Google Cloud, the pools in remote accounts, and the
    names in `task_accounts`.
    """
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
    """Return the region of the pool or the pool's zone, or `own_region` without either."""
    return provider.region or region_of(provider.zone) or own_region


def find_place_problems(place: PoolPlace, provider: GcpProvider) -> Iterator[str]:
    """Yield a line for each field of a pool's `provider` that conflicts with the place.

    Check project, name prefix, service account, region and the offerings' zones.
    """
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
