"""The catalogue of machine types, and the quotas of GPUs and vCPUs."""

import pytest

from control_plane.fleet.records import Market
from control_plane.gcp.accelerator_quotas import quota_advice, quota_metric
from control_plane.gcp.cpu_quotas import cpu_metric
from control_plane.gcp.machine_types import (
    GPU_TYPES,
    N1_TYPES,
    InstanceType,
    MachineType,
    accelerator_of,
    attachment_problem,
    boot_disk_type,
    custom_sibling,
    describe_instance_type,
    devices_of,
    find_machine_type,
    gpus_of,
    is_sold_by_parts,
    parse_instance_type,
    slots_of,
)
from control_plane.scheduling.agent_needs import AgentDevice


def test_names_of_a_series_end_with_the_number_of_gpus() -> None:
    for name, machine_type in GPU_TYPES.items():
        if name.startswith("a"):
            assert name.endswith(f"-{machine_type.gpus}g"), name


def test_standard_names_have_vcpus_and_memory() -> None:
    sizes = {name: gpu_kind for name, gpu_kind in GPU_TYPES.items() if name.startswith("g2-")}
    for name, machine_type in sizes.items():
        assert name == f"g2-standard-{machine_type.vcpus}"
        assert machine_type.memory_gb == 4 * machine_type.vcpus
    # N1 has per vCPU 3.75 GB as standard, 6.5 as highmem and 0.9 as highcpu.
    assert N1_TYPES["n1-standard-8"].memory_gb == 30
    assert N1_TYPES["n1-highmem-4"].memory_gb == 26
    assert N1_TYPES["n1-highcpu-96"].memory_gb == pytest.approx(86.4)
    assert "n1-highcpu-1" not in N1_TYPES


@pytest.mark.parametrize(
    "text", ["a2-highgpu-1g", "n1-standard-8+nvidia-tesla-t4:2", "n1-custom-8-32768"]
)
def test_instance_type_is_rendered_as_parsed(text: str) -> None:
    parsed = parse_instance_type(text)
    assert parsed is not None
    assert str(parsed) == text


@pytest.mark.parametrize("text", ["", "n1", "N1-standard-8", "n1-standard-8+t4", "zones/a/n1-x-1"])
def test_malformed_instance_type_is_none(text: str) -> None:
    assert parse_instance_type(text) is None
    assert slots_of(text, None, cpu_slots_allowed=True) is None


def test_describes_attached_accelerators() -> None:
    assert describe_instance_type("n1-standard-4", None, None) == InstanceType(
        "n1-standard-4", "nvidia-tesla-t4", 4
    )
    assert describe_instance_type("n1-standard-4", "nvidia-tesla-p4", 1).number == 1
    assert describe_instance_type("n1-standard-4", None, 0) == InstanceType("n1-standard-4")
    # The type's built-in accelerators, named or not.
    assert describe_instance_type("g2-standard-24", None, None) == InstanceType("g2-standard-24")
    assert describe_instance_type("g2-standard-24", "nvidia-l4", 2) == InstanceType(
        "g2-standard-24"
    )


def test_boot_disk_type_follows_the_series() -> None:
    kinds = {
        name: boot_disk_type(name)
        for name in ("n1-standard-8", "a2-highgpu-1g", "g2-standard-4", "a3-highgpu-8g")
    }
    assert list(kinds.values()) == ["pd-standard", "pd-standard", "pd-balanced", "pd-balanced"]
    assert boot_disk_type("custom-8-32768") == "pd-standard"
    # Unknown series are newer than known series and, as the newest known, take only Hyperdisk.
    for name in ("a3-ultragpu-8g", "a4-highgpu-8g", "g4-standard-48", "m4-megamem-28", "a9-x-1g"):
        assert boot_disk_type(name) == "hyperdisk-balanced"


@pytest.mark.parametrize(
    ("name", "market", "metric"),
    [
        ("n1-standard-8+nvidia-tesla-t4:1", Market.ON_DEMAND, "NVIDIA_T4_GPUS"),
        ("n1-standard-8+nvidia-tesla-t4:1", Market.SPOT, "PREEMPTIBLE_NVIDIA_T4_GPUS"),
        ("a2-ultragpu-8g", Market.SPOT, "PREEMPTIBLE_NVIDIA_A100_80GB_GPUS"),
        ("a3-highgpu-8g", Market.SPOT, "PREEMPTIBLE_NVIDIA_H100_GPUS"),
        ("a3-megagpu-8g", Market.SPOT, "PREEMPTIBLE_NVIDIA_H100_MEGA_GPUS"),
        ("a4-highgpu-8g", Market.SPOT, "PREEMPTIBLE_NVIDIA_B200_GPUS"),
        ("a3-highgpu-8g", Market.ON_DEMAND, "GPUS-PER-GPU-FAMILY-per-project-region"),
        ("e2-standard-4", Market.SPOT, ""),
    ],
)
def test_quota_metric_follows_gpu_and_market(name: str, market: Market, metric: str) -> None:
    assert quota_metric(name, market) == metric


def test_advice_names_the_quota_and_where_to_raise_it() -> None:
    assert quota_advice("g2-standard-4", Market.SPOT, "p1", "us-east1") == (
        "it counts against PREEMPTIBLE_NVIDIA_L4_GPUS in us-east1 and GPUS_ALL_REGIONS; "
        "raise it at https://console.cloud.google.com/iam-admin/quotas?project=p1"
    )


NEW = {
    "a9-highgpu-2g": MachineType(2, 64, 512.0, "nvidia-b900"),
    "e2-standard-4": MachineType(0, 4, 16.0),
}


def test_described_types_take_precedence() -> None:
    new = InstanceType("a9-highgpu-2g")
    assert (gpus_of(new), accelerator_of(new)) == (None, "")
    assert (gpus_of(new, NEW), accelerator_of(new, NEW)) == (2, "nvidia-b900")
    assert slots_of("a9-highgpu-2g", None, False, NEW) == 2
    assert describe_instance_type("a9-highgpu-2g", "nvidia-b900", 2, NEW) == new
    problem = attachment_problem(InstanceType("a9-highgpu-2g", "nvidia-tesla-t4", 1), NEW)
    assert problem.startswith("a9-highgpu-2g has 2 of nvidia-b900")
    larger = {"a2-highgpu-1g": MachineType(3, 12, 85.0, "nvidia-tesla-a100")}
    assert gpus_of(InstanceType("a2-highgpu-1g"), larger) == 3
    assert quota_metric("a9-highgpu-2g", Market.SPOT, NEW) == (
        "GPUS-PER-GPU-FAMILY-per-project-region"
    )


@pytest.mark.parametrize(
    ("name", "vcpus", "memory_gb"),
    [
        ("n1-custom-8-32768", 8, 32.0),
        ("custom-8-32768", 8, 32.0),
        ("custom-2-15360-ext", 2, 15.0),
        ("n2d-custom-16-65536", 16, 64.0),
        # Two shared vCPUs.
        ("e2-custom-micro-2048", 2, 2.0),
    ],
)
def test_custom_type_name_has_vcpus_and_memory(name: str, vcpus: int, memory_gb: float) -> None:
    assert find_machine_type(name) == MachineType(0, vcpus, memory_gb)
    assert not is_sold_by_parts(name)


def test_custom_type_has_a_predefined_sibling() -> None:
    assert custom_sibling("custom-8-32768") == "n1-standard-2"
    assert custom_sibling("n4-custom-8-32768-ext") == "n4-standard-2"
    assert custom_sibling("n1-standard-8") == ""


def test_malformed_custom_types_are_unknown() -> None:
    for name in ("g2-custom-8-32768", "n1-custom-8", "n1-custom-0x8-32768", "custom--8-32768"):
        assert find_machine_type(name) is None


def test_custom_n1_types_take_accelerators() -> None:
    for name in ("custom-8-32768", "n1-custom-8-32768"):
        instance = parse_instance_type(f"{name}+nvidia-tesla-t4:2")
        assert instance is not None
        assert attachment_problem(instance) == ""
        assert gpus_of(instance) == 2
        assert quota_metric(str(instance), Market.SPOT) == "PREEMPTIBLE_NVIDIA_T4_GPUS"
    assert cpu_metric("custom-8-32768", Market.ON_DEMAND) == "CPUS"


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("a2-highgpu-1g", AgentDevice("cuda", "NVIDIA A100-SXM4-40GB", 40960)),
        ("g2-standard-4", AgentDevice("cuda", "NVIDIA L4", 24576)),
        ("n1-standard-8+nvidia-tesla-t4:2", AgentDevice("cuda", "Tesla T4", 16384)),
        ("e2-standard-4", AgentDevice("cpu", "")),
    ],
)
def test_devices_of_a_type(name: str, device: AgentDevice) -> None:
    assert devices_of(name) == (device,)


def test_devices_of_an_unknown_type_are_unknown() -> None:
    assert devices_of("zz-1") == ()
