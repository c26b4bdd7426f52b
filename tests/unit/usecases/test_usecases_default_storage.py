"""The cluster's default checkpoint store, for experiments without a configured store."""

import json
from typing import Any

import pytest

from control_plane.checkpoint_stores.endpoints import endpoint_rule
from control_plane.config.pools import check_cluster
from control_plane.config.problems import ConfigInvalid
from control_plane.config.storage import parse_storage
from control_plane.queries.cluster_configuration import allowed_endpoints
from tests.unit.api.agent_side import CONFIG, Agent
from tests.unit.api.cluster import Cluster
from tests.unit.usecases.test_usecases_resource_pools import apply, ask

BUCKET = {"type": "s3", "bucket": "ours", "prefix": "a", "endpoint_url": "https://s3.test"}
KEYS = {"access_key": "AKIA", "secret_key": "canary"}
DEFAULT = json.dumps({"checkpoint_storage": {**BUCKET, **KEYS, "save_trial_latest": 3}})


def storage_of_trial(cluster: Cluster, config: str) -> dict[str, Any]:
    """Submit an experiment; return the `storage` of the specification that an agent receives."""
    created = cluster.create(config)
    assert created.status == 201, created.body
    agent = Agent(cluster)
    entry, *_ = agent.sync().json["desired"]
    found: dict[str, Any] = entry["spec"]["storage"]
    return found


def shown_storage(cluster: Cluster, experiment: int) -> dict[str, Any]:
    config = cluster.get(f"/experiments/{experiment}").json["config"]
    return {name: item for name, item in config["checkpoint_storage"].items() if item is not None}


def test_experiment_without_store_uses_cluster_default(cluster: Cluster) -> None:
    assert apply(cluster, DEFAULT).status == 200
    assert storage_of_trial(cluster, CONFIG) == {**BUCKET, **KEYS}
    shown = shown_storage(cluster, 1)
    assert (shown["bucket"], shown["save_trial_latest"]) == ("ours", 3)
    assert "canary" not in json.dumps([shown, ask(cluster, "GET", "/cluster/configuration").json])


def test_experiment_overrides_retention_of_cluster_default(cluster: Cluster) -> None:
    apply(cluster, DEFAULT)
    cluster.create(CONFIG + "checkpoint_storage: {save_trial_latest: 7}\n")
    shown = shown_storage(cluster, 1)
    assert (shown["type"], shown["save_trial_latest"]) == ("s3", 7)


@pytest.mark.parametrize(
    "own",
    [
        {"type": "directory", "container_path": "/mine"},
        {"type": "s3", "bucket": "mine", "endpoint_url": "https://evil.test"},
    ],
)
def test_own_store_inherits_only_retention(cluster: Cluster, own: dict[str, str]) -> None:
    apply(cluster, DEFAULT)
    assert cluster.create(CONFIG + f"checkpoint_storage: {json.dumps(own)}\n").status == 201
    shown = shown_storage(cluster, 1)
    assert {name: shown[name] for name in own} == own
    assert not {"access_key", "secret_key", "prefix"} & shown.keys()
    assert shown["save_trial_latest"] == 3


def test_rejects_override_of_part_of_cluster_default(cluster: Cluster) -> None:
    apply(cluster, DEFAULT)
    refused = cluster.create(CONFIG + "checkpoint_storage: {endpoint_url: 'https://evil.test'}\n")
    (detail,) = refused.json["error"]["details"]
    assert detail["path"] == "checkpoint_storage.type"
    assert "canary" not in refused.body.decode()


def test_experiment_keeps_default_from_the_submission(cluster: Cluster) -> None:
    apply(cluster, DEFAULT)
    cluster.create(CONFIG)
    apply(cluster, DEFAULT.replace("ours", "newer"))
    cluster.create(CONFIG)
    assert [shown_storage(cluster, n)["bucket"] for n in (1, 2)] == ["ours", "newer"]


def test_endpoints_of_cluster_default_are_allowed(cluster: Cluster) -> None:
    hdfs = {"type": "hdfs", "hdfs_url": "http://n1:50070; http://n2:50070", "hdfs_path": "/c"}
    apply(cluster, json.dumps({"checkpoint_storage": hdfs}))
    find_problem = endpoint_rule(lambda: allowed_endpoints(cluster.services.table))
    assert find_problem(parse_storage(hdfs)) is None
    problem = find_problem(parse_storage({**hdfs, "hdfs_url": "http://n1:50070;http://n3:50070"}))
    assert problem is not None
    assert (problem.loc, problem.message) == (
        ("hdfs_url",),
        '"http://n3:50070" is not a store that this cluster may call',
    )
    azure = {"type": "azure", "container": "c", "connection_string": "AccountName=a;AccountKey=k"}
    assert find_problem(parse_storage(azure)) is None
    elsewhere = {**azure, "connection_string": "BlobEndpoint=http://10.0.0.1;AccountKey=canary"}
    problem = find_problem(parse_storage(elsewhere))
    assert problem is not None
    assert problem.loc == ("connection_string",)
    assert "canary" not in problem.message


def test_cluster_default_requires_type() -> None:
    with pytest.raises(ConfigInvalid) as refused:
        check_cluster("checkpoint_storage: {save_trial_best: 2}")
    (problem,) = refused.value.problems
    assert (problem.path, problem.message) == ("checkpoint_storage.type", "is required")
