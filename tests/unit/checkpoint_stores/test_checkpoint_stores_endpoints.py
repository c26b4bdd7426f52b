"""Store endpoints named by users: a cluster in a cloud calls only configured endpoints."""

from dataclasses import replace
from pathlib import Path

import pytest

from control_plane.access.principals import Role
from control_plane.api.app import create_app
from control_plane.checkpoint_gc.stores import CollectionFailed, Stores
from control_plane.checkpoint_stores.endpoints import endpoint_rule
from control_plane.checkpoint_stores.types.s3 import S3
from control_plane.config.endpoints import endpoint_origin
from control_plane.queries.cluster_configuration import allowed_endpoints
from tests.conftest import require
from tests.unit.api.agent_side import CONFIG
from tests.unit.api.cluster import TOKENS, V1, Cluster, build_cluster
from tests.unit.api.exchange import Answer, call

STORAGE = """
checkpoint_storage:
  type: s3
  bucket: data
  access_key: a
  secret_key: s
  endpoint_url: {}
"""


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://store.test", "https://store.test:443"),
        ("HTTP://Store.Test.:0080/base/", "http://store.test:80"),
        ("http://[::1]:9000", "http://[::1]:9000"),
        ("http://me:canary@store.test", None),
        ("http://store.test\\@evil.test", None),
        ("http://store.test#@evil.test", None),
        ("http://store.test?@evil.test", None),
        ("http://store.test:80:80", None),
        ("http://store.test:65535", "http://store.test:65535"),
        ("http://store.test:65536", None),
        ("ftp://store.test", None),
        ("http://ſtore.test", None),
        ("http://store.test\n", None),
        ("//store.test", None),
        ("", None),
    ],
)
def test_only_plain_urls_have_an_origin(url: str, origin: str | None) -> None:
    assert endpoint_origin(url) == origin


def s3(endpoint: str | None) -> S3:
    return S3(type="s3", bucket="b", endpoint_url=endpoint)


def test_endpoint_rule_compares_scheme_host_and_port() -> None:
    find_problem = endpoint_rule(lambda: ["https://store.test", "http://10.0.0.1:9000"])
    for allowed in (None, "https://store.test:443/base", "http://10.0.0.1:9000"):
        assert find_problem(s3(allowed)) is None
    for refused in ("http://store.test", "https://store.test:444", "http://10.0.0.1"):
        problem = find_problem(s3(refused))
        assert problem is not None
        assert problem.message == f'"{refused}" is not a store that this cluster may call'
    problem = find_problem(s3("https://me:canary@store.test"))
    assert problem is not None
    assert "canary" not in problem.message


@pytest.fixture
def cluster_in_cloud(tmp_path: Path) -> Cluster:
    """A cluster that calls only configured endpoints."""
    require("boto3")
    cluster = build_cluster(tmp_path / "cluster")
    rule = endpoint_rule(lambda: allowed_endpoints(cluster.services.table))
    services = replace(cluster.services, endpoints=rule)
    return replace(cluster, services=services, app=create_app(services))


def apply(cluster: Cluster, config: str) -> Answer:
    path = f"{V1}/cluster/configuration"
    content = {"config": config, "dry_run": False}
    return call(cluster.app, "PUT", path, token=TOKENS[Role.ADMIN], content=content)


def test_experiments_may_only_name_configured_endpoints(cluster_in_cloud: Cluster) -> None:
    config = CONFIG + STORAGE.format("http://169.254.169.254/latest")
    answer = cluster_in_cloud.create(config)
    assert (answer.status, answer.code) == (422, "invalid")
    [detail] = answer.json["error"]["details"]
    assert detail["path"] == "checkpoint_storage.endpoint_url"
    assert detail["message"] == (
        '"http://169.254.169.254/latest" is not a store that this cluster may call'
    )
    assert "checkpoint_endpoints" in detail["hint"]
    assert (
        apply(cluster_in_cloud, "checkpoint_endpoints: ['https://me:x@store.test']").status == 422
    )
    assert apply(cluster_in_cloud, "checkpoint_endpoints: ['https://store.test']").status == 200
    assert cluster_in_cloud.create(CONFIG + STORAGE.format("https://store.test/")).status == 201


def test_removed_endpoint_is_not_called(cluster_in_cloud: Cluster) -> None:
    apply(cluster_in_cloud, "checkpoint_endpoints: ['https://store.test']")
    cluster_in_cloud.create(CONFIG + STORAGE.format("https://store.test"))
    apply(cluster_in_cloud, "{}")
    services = cluster_in_cloud.services
    stores = Stores(services.engine, services.objects, services.checkpoints, services.endpoints)
    with pytest.raises(CollectionFailed, match=r'"https://store\.test" is not a store that this'):
        stores.checkpoint_files(1)


def test_local_cluster_calls_any_endpoint(tmp_path: Path) -> None:
    require("boto3")
    cluster = build_cluster(tmp_path / "cluster")
    assert cluster.create(CONFIG + STORAGE.format("http://127.0.0.1:9000")).status == 201
