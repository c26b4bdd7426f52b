"""The caches of queries, which the services keep."""

from dataclasses import replace

from control_plane.queries.job import QueuePlans
from control_plane.queries.rungs import RungsCache
from tests.unit.api.cluster import Cluster


def test_services_keep_one_cache_of_each_class(cluster: Cluster) -> None:
    services = cluster.services
    plans, rungs = services.cache_of(QueuePlans), services.cache_of(RungsCache)
    assert (type(plans), type(rungs)) == (QueuePlans, RungsCache)
    assert services.cache_of(QueuePlans) is plans
    assert services.cache_of(RungsCache) is rungs


def test_changed_services_have_separate_caches(cluster: Cluster) -> None:
    other = replace(cluster.services, version="2")
    assert other.cache_of(QueuePlans) is not cluster.services.cache_of(QueuePlans)
    assert other == replace(cluster.services, version="2")
