"""The catalogue of machine types, and the quotas that count their GPUs."""

import pytest

from control_plane.fleet.records import Market
from control_plane.gcp.accelerator_quotas import quota_advice, quota_metric
from control_plane.gcp.machine_types import (
    GPU_TYPES,
    N1_TYPES,
    InstanceType,
    boot_disk_type,
    describe_instance_type,
    parse_instance_type,
    slots_of,
)


def test_the_number_in_a_name_of_an_a_series_is_its_gpus() -> None:
    for name, known in GPU_TYPES.items():
        if name.startswith("a"):
            assert name.endswith(f"-{known.gpus}g"), name


def test_the_number_in_a_standard_name_is_its_vcpus_with_four_gigabytes_each() -> None:
    sizes = {name: it for name, it in GPU_TYPES.items() if name.startswith("g2-")}
    for name, known in sizes.items():
        assert name == f"g2-standard-{known.vcpus}"
        assert known.memory_gb == 4 * known.vcpus
    # 3.75 GB for each vCPU of a standard N1, 6.5 of a highmem one, 0.9 of a highcpu one.
    assert N1_TYPES["n1-standard-8"].memory_gb == 30
    assert N1_TYPES["n1-highmem-4"].memory_gb == 26
    assert N1_TYPES["n1-highcpu-96"].memory_gb == pytest.approx(86.4)
    assert "n1-highcpu-1" not in N1_TYPES


@pytest.mark.parametrize(
    "text", ["a2-highgpu-1g", "n1-standard-8+nvidia-tesla-t4:2", "n1-custom-8-32768"]
)
def test_an_instance_type_is_written_as_it_was_read(text: str) -> None:
    parsed = parse_instance_type(text)
    assert parsed is not None
    assert str(parsed) == text


@pytest.mark.parametrize("text", ["", "n1", "N1-standard-8", "n1-standard-8+t4", "zones/a/n1-x-1"])
def test_what_is_no_instance_type_is_none(text: str) -> None:
    assert parse_instance_type(text) is None
    assert slots_of(text, None, cpu_slots_allowed=True) is None


def test_accelerators_that_are_named_beside_a_machine_type_are_attached() -> None:
    assert describe_instance_type("n1-standard-4", None, None) == InstanceType(
        "n1-standard-4", "nvidia-tesla-t4", 4
    )
    assert describe_instance_type("n1-standard-4", "nvidia-tesla-p4", 1).number == 1
    assert describe_instance_type("n1-standard-4", None, 0) == InstanceType("n1-standard-4")
    # Its own, named or not.
    assert describe_instance_type("g2-standard-24", None, None) == InstanceType("g2-standard-24")
    assert describe_instance_type("g2-standard-24", "nvidia-l4", 2) == InstanceType(
        "g2-standard-24"
    )


def test_a_boot_disk_is_of_a_kind_that_the_type_takes() -> None:
    kinds = {
        name: boot_disk_type(name)
        for name in ("n1-standard-8", "a2-highgpu-1g", "g2-standard-4", "a3-highgpu-8g")
    }
    assert list(kinds.values()) == ["pd-standard", "pd-standard", "pd-balanced", "pd-balanced"]
    for name in ("a3-ultragpu-8g", "a4-highgpu-8g", "g4-standard-48", "m4-megamem-28"):
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
def test_gpus_are_counted_by_kind_and_market(name: str, market: Market, metric: str) -> None:
    assert quota_metric(name, market) == metric


def test_advice_names_the_quota_and_where_to_raise_it() -> None:
    assert quota_advice("g2-standard-4", Market.SPOT, "p1", "us-east1") == (
        "it counts against PREEMPTIBLE_NVIDIA_L4_GPUS in us-east1 and GPUS_ALL_REGIONS; "
        "raise it at https://console.cloud.google.com/iam-admin/quotas?project=p1"
    )
