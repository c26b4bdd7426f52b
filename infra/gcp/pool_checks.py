"""Checks of the resource pools against the stack that their instances are to run in, which need
nobody's answer.
"""

from collections.abc import Iterator

from control_plane.config.pools import ClusterConfig
from control_plane.gcp.pool_provider import GcpProvider
from control_plane.gcp.zones import region_of
from infra.gcp.settings import Settings


def gcp_pools(cluster: ClusterConfig) -> Iterator[tuple[str, GcpProvider]]:
    """Yield the name and the provider of each pool whose instances are Compute Engine's."""
    for pool in cluster.resource_pools:
        if isinstance(pool.provider, GcpProvider):
            yield pool.pool_name, pool.provider


def find_pool_problems(settings: Settings, cluster: ClusterConfig) -> list[str]:
    """Return what pools say that cannot run in the stack, a line each."""
    return [
        f"{settings.cluster_config}: pool {name}: {problem}"
        for name, provider in gcp_pools(cluster)
        for problem in _problems(settings, provider)
    ]


def pool_region(settings: Settings, provider: GcpProvider) -> str:
    """Return the region of a pool's instances."""
    return provider.region or region_of(provider.zone) or settings.region


def _problems(settings: Settings, provider: GcpProvider) -> Iterator[str]:
    if provider.project not in ("", settings.project):
        yield (
            f"provider.project is {provider.project}: expected {settings.project}, where the stack "
            "is; leave it out"
        )
    if provider.name_prefix:
        yield (
            f"provider.name_prefix is {provider.name_prefix}: expected none, for the tick may end "
            f"instances alone whose names begin with {settings.names.instance_prefix}; leave it out"
        )
    email = provider.service_account.email
    if email not in ("", settings.names.email("instance")):
        yield (
            f"provider.service_account.email is {email}: expected none, for instances prove who "
            "they are by the stack's own account, and the tick may give them no other; leave it out"
        )
    region = pool_region(settings, provider)
    if region not in settings.subnetwork_regions:
        known = ", ".join(settings.subnetwork_regions)
        where = "detcloud:network" if settings.network else "detcloud:regions"
        yield (
            f"its instances are to be in {region}: expected one of {known}, where the stack has "
            f"subnetworks; add it to {where}"
        )
    for offering in provider.offerings:
        if offering.zone and region_of(offering.zone) != region:
            yield f"an offering is in the zone {offering.zone}: expected one of {region}"
