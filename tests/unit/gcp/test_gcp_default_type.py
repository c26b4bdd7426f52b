"""The machine type of a pool on Google Cloud that names none."""

import json

import pytest

from control_plane.config.pool_warnings import pool_warnings
from control_plane.config.pools import check_cluster
from control_plane.config.problems import ConfigInvalid
from control_plane.gcp.default_type import find_default_type, n1_type_for
from control_plane.gcp.machine_types import (
    ATTACHABLE,
    N1_ACCELERATOR,
    N1_ACCELERATORS,
    N1_DEFAULT,
    InstanceType,
)
from control_plane.gcp.pool_provider import GcpProvider
from provisioner.clouds.gcp.launch_request import GceSettings, parse_section
from provisioner.settings import parse_provider_settings


def pool_of(fields: str) -> str:
    return f"resource_pools: [{{pool_name: default, provider: {{type: gcp{fields}}}}}]"


def provider_of(fields: str) -> GcpProvider:
    config = check_cluster(pool_of(fields))
    provider = config.resource_pools[0].provider
    assert isinstance(provider, GcpProvider)
    # The provisioner launches the same type, and the stored configuration equals the given one.
    section = parse_section(parse_provider_settings(provider.to_json()).section)
    assert section.default_offering().instance_type == provider.default_type
    assert check_cluster(config.to_json().decode()) == config
    return provider


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ("", "n1-standard-4+nvidia-tesla-t4:1"),
        (", instance_type: {preemptible: true}", "n1-standard-4+nvidia-tesla-t4:1"),
        (", instance_slots: 2", "n1-standard-8+nvidia-tesla-t4:2"),
        (", instance_slots: 4", "n1-standard-16+nvidia-tesla-t4:4"),
        # An N1 has at most 4 T4.
        (", instance_slots: 8", "g2-standard-96"),
        (", instance_slots: 16", "a2-megagpu-16g"),
        (", instance_type: {gpu_num: 4}", "n1-standard-16+nvidia-tesla-t4:4"),
        (", instance_type: {gpu_num: 0}", "n1-standard-4"),
        (', instance_type: {gpu_type: ""}', "n1-standard-4"),
        (", instance_type: {machine_type: n1-standard-32}", "n1-standard-32+nvidia-tesla-t4:1"),
        (", instance_type: {machine_type: g2-standard-24}", "g2-standard-24"),
        (
            ", boot_disk_source_image: i, instance_type: {gpu_type: nvidia-tesla-v100, gpu_num: 8}",
            "n1-standard-32+nvidia-tesla-v100:8",
        ),
    ],
)
def test_smallest_type_that_fits_is_the_default(fields: str, name: str) -> None:
    assert provider_of(fields).default_type == name


def test_default_of_the_provisioner_is_the_cheapest_type_with_a_gpu() -> None:
    default = InstanceType(N1_DEFAULT, N1_ACCELERATOR, N1_ACCELERATORS)
    assert find_default_type(1) == default
    assert GceSettings().default_offering().instance_type == str(default)


def test_n1_types_have_4_vcpus_per_gpu() -> None:
    names = [n1_type_for(gpus) for gpus in (0, *ATTACHABLE["nvidia-tesla-v100"], 100)]
    assert names == [
        *("n1-standard-4", "n1-standard-4", "n1-standard-8", "n1-standard-16", "n1-standard-32"),
        "n1-standard-96",
    ]


def test_refuses_slots_that_no_type_has() -> None:
    with pytest.raises(ConfigInvalid) as caught:
        check_cluster(pool_of(", instance_slots: 3"))
    (problem,) = caught.value.problems
    assert problem.path == "resource_pools[0].provider.instance_slots"
    assert problem.message == "must be 1, 2, 4, 8 or 16 without a machine_type, not 3"


def test_notice_names_type_price_and_larger_types() -> None:
    # 4 vCPUs at 0.031611, 15 GB at 0.004237 and a T4 at 0.35.
    assert round(4 * 0.031611 + 15 * 0.004237 + 0.35, 3) == 0.54
    assert list(pool_warnings(check_cluster(pool_of("")))) == [
        "pool default: provider.instance_type.machine_type is not set: instances are "
        "n1-standard-4+nvidia-tesla-t4:1 with 1 T4 at $0.54 an hour; larger types: "
        "n1-standard-8+nvidia-tesla-t4:2 with 2 T4 at $1.08 an hour, "
        "n1-standard-16+nvidia-tesla-t4:4 with 4 T4 at $2.16 an hour, "
        "g2-standard-96 with 8 L4 at $8.46 an hour (list prices on demand in us-central1)"
    ]


@pytest.mark.parametrize(
    "fields",
    [
        ", instance_type: {machine_type: n1-standard-4}",
        ", instance_type: {gpu_num: 0}",
        ", offerings: [{instance_type: g2-standard-4}]",
    ],
)
def test_named_type_and_type_without_gpus_have_no_notice(fields: str) -> None:
    assert not list(pool_warnings(check_cluster(pool_of(fields))))


@pytest.mark.parametrize(
    ("machine", "gpus"),
    [
        # Version 0.1 stored no number for the default, which was 4.
        ({"machine_type": "n1-standard-32"}, 4),
        ({"machine_type": "n1-standard-32", "gpu_num": 1}, 1),
        ({"machine_type": "n1-standard-32", "gpu_type": ""}, 0),
        ({"machine_type": "g2-standard-4"}, 1),
    ],
)
def test_stored_section_without_a_number_keeps_its_gpus(
    machine: dict[str, object], gpus: int
) -> None:
    stored = {"type": "gcp", "instance_type": machine}
    provider = GcpProvider.model_validate(GcpProvider.complete_stored(stored))
    assert provider.slots_offered() == (gpus,)
    section = parse_section(parse_provider_settings(json.dumps(stored)).section)
    assert section.default_offering().slots == gpus
