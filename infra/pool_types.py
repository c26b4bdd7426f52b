"""The check of a stack's pools for types of provider that its cluster does not have."""

from collections.abc import Iterator, Set

from control_plane.config.pools import ClusterConfig

OTHER_TYPE_REMEDY = (
    "detcloud:otherClouds says what the cluster has in another cloud: docs/resource-pools.md, "
    "Pools in another cloud"
)


def find_other_types(
    cluster: ClusterConfig, types: Set[str], remedy: str
) -> Iterator[tuple[str, str]]:
    """Yield the name of each pool whose provider has none of these types, and the problem.

    `remedy` says how the cluster could get another type.
    """
    for pool in cluster.resource_pools:
        if pool.provider is not None and pool.provider.type not in types:
            yield (
                pool.pool_name,
                f"provider.type is {pool.provider.type}: expected {' or '.join(sorted(types))}; "
                f"{remedy}",
            )
