"""The types that AWS's default image boots, and the refusal of pools with other types."""

import json

import pytest

from control_plane.aws.default_image import architecture_by_name, find_image_problem
from control_plane.aws.instance_types import GPU_TYPES
from control_plane.config.pools import ClusterConfig, check_cluster, check_pool
from control_plane.config.problems import ConfigInvalid


@pytest.mark.parametrize(
    ("kind", "architecture"),
    [
        ("g5.xlarge", "x86_64"),
        ("g5g.xlarge", "arm64"),
        ("g6e.xlarge", "x86_64"),
        ("gr6.4xlarge", "x86_64"),
        ("p6-b200.48xlarge", "x86_64"),
        ("p6e-gb200.36xlarge", "arm64"),
        ("m7i-flex.large", "x86_64"),
        ("x2gd.large", "arm64"),
        ("im4gn.large", "arm64"),
        ("t3.micro", "x86_64"),
    ],
)
def test_architecture_follows_from_the_instance_types_name(kind: str, architecture: str) -> None:
    assert architecture_by_name(kind) == architecture


def test_only_old_gpus_and_arm_types_of_the_catalogue_are_problems() -> None:
    families = {name.partition(".")[0] for name in GPU_TYPES if find_image_problem(name)}
    assert families == {"g5g", "p2", "p3", "p3dn"}


def pool_of(kind: str, more: str = "") -> str:
    return (
        "resource_pools: [{pool_name: default, provider: {type: aws, cpu_slots_allowed: true, "
        f"offerings: [{{instance_type: g5.xlarge}}, {{instance_type: {kind}, slots: 1}}]{more}}}}}]"
    )


@pytest.mark.parametrize("kind", ["g5g.xlarge", "m7g.large", "a1.large", "c8gd.large"])
def test_refuses_arm_types_with_the_default_image(kind: str) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        check_cluster(pool_of(kind))
    (problem,) = caught.value.problems
    assert problem.path == "resource_pools[0].provider.offerings[1].instance_type"
    assert problem.message.startswith(f"cannot boot {kind}: its processor is ARM's")
    assert problem.hint == "use another type, or name an image for ARM in provider.image_id"


@pytest.mark.parametrize("kind", ["p3.2xlarge", "g3s.xlarge"])
def test_refuses_gpus_that_the_open_driver_does_not_run(kind: str) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        check_cluster(pool_of(kind))
    (problem,) = caught.value.problems
    assert "too old for the driver of AWS's image" in problem.message
    assert problem.hint.endswith("NVIDIA's proprietary driver in provider.image_id")


def test_types_with_an_image_of_the_users_own_pass() -> None:
    for kind in ("g5g.xlarge", "p3.2xlarge"):
        check_cluster(pool_of(kind, ", image_id: ami-1"))


def test_refuses_the_type_of_a_pool_without_offerings() -> None:
    with pytest.raises(ConfigInvalid) as caught:
        check_pool("p", "provider: {type: aws, instance_type: p3.2xlarge}", [], None)
    (problem,) = caught.value.problems
    assert (problem.path, problem.line) == ("provider.instance_type", 1)


def test_stored_pools_that_cannot_boot_stay_readable() -> None:
    # Such a pool was accepted by earlier versions.
    text = pool_of("p3.2xlarge", ", image_id: ami-1")
    stored = json.loads(check_cluster(text).to_json())
    stored["resource_pools"][0]["provider"]["image_id"] = ""
    config = ClusterConfig.model_validate(stored)
    assert config.resource_pools[0].provider is not None
    with pytest.raises(ConfigInvalid):
        check_pool("default", None, ["description=mine"], config.resource_pools[0])
