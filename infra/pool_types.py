"""The check that a stack supports the pools' types of providers."""

from collections.abc import Iterator, Set

from control_plane.config.pools import ClusterConfig

OTHER_TYPE_REMEDY = (
    "detcloud:otherClouds says what the cluster has in another cloud: docs/resource-pools.md, "
    "Pools in another cloud"
)


def find_other_types(
    cluster: ClusterConfig, types: Set[str], remedy: str
) -> Iterator[tuple[str, str]]:
    """Yield (pool name, problem) for each pool with a provider type that is not in `types`.

    Skip pools without a provider. `remedy` is a text on how to support another type, and ends the
    problem.
    """
    for pool in cluster.resource_pools:
        if pool.provider is not None and pool.provider.type not in types:
            yield (
                pool.pool_name,
                f"provider.type is {pool.provider.type}: expected {' or '.join(sorted(types))}; "
                f"{remedy}",
            )
