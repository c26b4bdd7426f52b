"""The types that Google's default image boots, and the refusal of pools with other types."""

import pytest

from control_plane.config.pools import check_cluster
from control_plane.config.problems import ConfigInvalid
from control_plane.gcp.default_image import find_image_problem
from control_plane.gcp.machine_types import ATTACHABLE, GPU_TYPES, MachineType


def pool_of(kind: str, more: str = "") -> str:
    offerings = f"offerings: [{{instance_type: {kind}}}]"
    return f"resource_pools: [{{pool_name: default, provider: {{type: gcp, {offerings}{more}}}}}]"


def test_only_old_accelerators_of_the_catalogue_are_problems() -> None:
    assert not any(map(find_image_problem, GPU_TYPES))
    kinds = {kind for kind in ATTACHABLE if find_image_problem(f"n1-standard-8+{kind}:1")}
    # All but the T4.
    assert kinds == {"nvidia-tesla-v100", "nvidia-tesla-p100", "nvidia-tesla-p4"}


@pytest.mark.parametrize("kind", ["nvidia-tesla-v100", "nvidia-tesla-p100", "nvidia-tesla-p4"])
def test_refuses_gpus_that_the_open_driver_does_not_run(kind: str) -> None:
    name = f"n1-standard-8+{kind}:1"
    with pytest.raises(ConfigInvalid) as caught:
        check_cluster(pool_of(name))
    (problem,) = caught.value.problems
    assert problem.path == "resource_pools[0].provider.offerings[0].instance_type"
    assert problem.message.startswith(f"cannot boot {name}: its GPU, ")
    assert problem.hint == (
        "use another type, or name an image with NVIDIA's proprietary driver in "
        "provider.boot_disk_source_image"
    )
    check_cluster(pool_of(name, ", boot_disk_source_image: projects/p/global/images/ours"))


def test_refuses_the_type_of_a_pool_without_offerings() -> None:
    machine = "{machine_type: n1-standard-8, gpu_type: nvidia-tesla-v100, gpu_num: 1}"
    provider = f"{{type: gcp, instance_type: {machine}}}"
    with pytest.raises(ConfigInvalid) as caught:
        check_cluster(f"resource_pools: [{{pool_name: default, provider: {provider}}}]")
    (problem,) = caught.value.problems
    assert problem.path == "resource_pools[0].provider.instance_type"


def test_arm_series_need_another_image() -> None:
    for name in ("t2a-standard-4", "c4a-standard-4"):
        problem = find_image_problem(name)
        assert problem is not None
        assert problem.text.startswith("its processor is ARM's")
    # Grace, the processor beside a GB200, is ARM's too.
    described = {"a4x-highgpu-4g": MachineType(4, 140, 884.0, "nvidia-gb200")}
    assert find_image_problem("a4x-highgpu-4g", described) is not None


def test_described_and_unknown_types() -> None:
    described = {"n9-x-1g": MachineType(1, 8, 32.0, "nvidia-tesla-v100")}
    assert find_image_problem("n9-x-1g", described) is not None
    assert find_image_problem("n9-x-1g") is None
    assert find_image_problem("malformed type") is None
