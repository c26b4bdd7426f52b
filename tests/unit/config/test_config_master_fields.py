"""Fields of Determined's master.yaml in a cluster configuration get hints at replacements."""

from collections.abc import Mapping
from typing import Any

import pytest

from control_plane.aws.pool_provider import AwsProvider
from control_plane.config import master_fields
from control_plane.config.pools import (
    ClusterConfig,
    PoolFields,
    ResourceManager,
    Scheduler,
    check_cluster,
)
from control_plane.config.problems import ConfigInvalid, Problem
from control_plane.config.section import HINTS_MAX, Section
from control_plane.config.task_container_defaults import TaskContainerDefaults
from control_plane.gcp.pool_provider import GcpProvider
from tests.unit.config.samples import to_yaml

SECTIONS: list[tuple[type[Section], Mapping[str, str]]] = [
    (ClusterConfig, master_fields.CLUSTER),
    (ResourceManager, master_fields.RESOURCE_MANAGER),
    (Scheduler, master_fields.SCHEDULER),
    (PoolFields, master_fields.POOL),
    (TaskContainerDefaults, master_fields.TASK_CONTAINER_DEFAULTS),
    (AwsProvider, master_fields.PROVIDER),
    (GcpProvider, master_fields.PROVIDER),
]


def problems_of(tree: dict[str, Any]) -> dict[str, Problem]:
    with pytest.raises(ConfigInvalid) as caught:
        check_cluster(to_yaml(tree))
    return {problem.path: problem for problem in caught.value.problems}


@pytest.mark.parametrize(("section", "hints"), SECTIONS)
def test_existing_fields_have_no_unknown_field_hint(
    section: type[Section], hints: Mapping[str, str]
) -> None:
    assert section.unknown_field_hints == hints
    assert not set(hints) & set(section.model_fields)


def test_all_master_fields_have_hints_in_one_report() -> None:
    assert len(master_fields.CLUSTER) > HINTS_MAX
    problems = problems_of(dict.fromkeys(master_fields.CLUSTER, "x"))
    assert {path: problem.hint for path, problem in problems.items()} == dict(master_fields.CLUSTER)
    assert {problem.message for problem in problems.values()} == {"is not a known field"}


@pytest.mark.parametrize(
    ("tree", "path", "hint"),
    [
        ({"scheduler": {"type": "priority"}}, "scheduler", "resource_manager.scheduler"),
        ({"db": {"user": "x", "password": "y"}}, "db", "keeps its state itself"),
        ({"agent_id": "a"}, "agent_id", "python -m detcloud.agent --help"),
        (
            {"resource_manager": {"scheduler": {"fit": "best"}}},
            "resource_manager.scheduler.fit",
            "fitting_policy",
        ),
        (
            {"resource_manager": {"type": "kubernetes"}},
            "resource_manager.type",
            "machines that a pool's provider starts",
        ),
        (
            {"task_container_defaults": {"network_mode": "host"}},
            "task_container_defaults.network_mode",
            "the machine's own network",
        ),
        (
            {"resource_pools": [{"pool_name": "default", "kubernetes_namespace": "x"}]},
            "resource_pools[0].kubernetes_namespace",
            "no pods",
        ),
        (
            {
                "resource_pools": [
                    {
                        "pool_name": "default",
                        "provider": {
                            "type": "aws",
                            "master_url": "http://x",
                            "region": "us-east-1",
                        },
                    }
                ]
            },
            "resource_pools[0].provider.master_url",
            "instances know the cluster's address",
        ),
    ],
)
def test_master_fields_hint_at_the_replacement(tree: dict[str, Any], path: str, hint: str) -> None:
    assert hint in problems_of(tree)[path].hint


def test_unknown_name_is_compared_with_existing_fields() -> None:
    assert problems_of({"resource_pool_s": []})["resource_pool_s"].hint.startswith(
        "did you mean resource_pools?"
    )
