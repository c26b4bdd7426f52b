"""The text of a deployed cluster configuration."""

import json
from pathlib import Path

from control_plane.config.pools import check_cluster
from infra.cluster_config_file import read_cluster_config

NAMED = "resource_pools: [{pool_name: default, provider: {type: aws, instance_type: g5.xlarge}}]"


def test_deployed_configuration_names_default_types(tmp_path: Path) -> None:
    file = tmp_path / "pools.yaml"
    file.write_text(
        "resource_pools:\n"
        "  - {pool_name: default, provider: {type: aws, spot: true}}\n"
        "  - {pool_name: cloud, provider: {type: gcp, instance_type: {preemptible: true}}}\n"
        "  - {pool_name: desk}\n"
    )
    text = read_cluster_config(file)
    # The names make the digest of the configuration change with the defaults of a version.
    given = [pool.get("provider") for pool in json.loads(text)["resource_pools"]]
    machine = {"machine_type": "n1-standard-4", "gpu_num": 1, "preemptible": True}
    assert given == [
        {"type": "aws", "spot": True, "instance_type": "g4dn.xlarge"},
        {"type": "gcp", "instance_type": machine},
        None,
    ]
    assert check_cluster(text) == check_cluster(file.read_text())
    # A file in which all pools name types is deployed as it is.
    file.write_text(NAMED)
    assert read_cluster_config(file) == NAMED
