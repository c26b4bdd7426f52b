"""The table of GPUs, and the references of both clouds' catalogues to the table."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

from control_plane.aws import instance_types
from control_plane.aws.instance_types import GPU_FAMILIES, family_of
from control_plane.fleet import gpu_models
from control_plane.fleet.gpu_models import (
    DRIVER_MIN,
    GPU_MODELS,
    GpuModel,
    find_driver_problem,
    find_gpu_model,
)
from control_plane.gcp import machine_types
from control_plane.gcp.machine_types import (
    ACCELERATOR_MODELS,
    ATTACHABLE,
    GPU_TYPES,
    parse_instance_type,
)

REPOSITORY = Path(__file__).parents[3]


def test_open_modules_run_compute_capability_7_5_or_newer() -> None:
    # Turing is the generation with capability 7.5.
    for model in GPU_MODELS:
        assert model.runs_open_modules == (model.capability >= (7, 5)), model.name


def test_newer_generations_have_higher_capabilities() -> None:
    order = list(type(GPU_MODELS[0].generation))
    by_age = sorted(GPU_MODELS, key=lambda model: order.index(model.generation))
    for older, newer in pairwise(by_age):
        if older.generation is not newer.generation:
            assert older.capability < newer.capability, newer.name


def test_names_are_unique() -> None:
    names = [model.name.casefold() for model in GPU_MODELS]
    assert len(set(names)) == len(names)


def test_every_gpu_family_of_ec2_has_a_model() -> None:
    assert {family_of(name) for name in instance_types.GPU_TYPES} <= set(GPU_FAMILIES)
    assert set(GPU_FAMILIES).isdisjoint(instance_types.CPU_FAMILIES)
    assert set(GPU_FAMILIES.values()) <= set(GPU_MODELS)


def test_every_accelerator_of_compute_engine_has_a_model() -> None:
    named = {machine_type.accelerator for machine_type in GPU_TYPES.values()} | set(ATTACHABLE)
    assert named <= set(ACCELERATOR_MODELS)
    assert set(ACCELERATOR_MODELS.values()) <= set(GPU_MODELS)


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("g4dn.metal", gpu_models.T4),
        ("p3.2xlarge", gpu_models.V100),
        # A size that the catalogue lacks.
        ("g3.4xlarge", gpu_models.M60),
        ("m5.large", None),
        ("g4ad.xlarge", None),
    ],
)
def test_model_follows_the_family_of_an_ec2_type(name: str, model: GpuModel | None) -> None:
    assert instance_types.gpu_model_of(name) is model


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("n1-standard-8+nvidia-tesla-p100:2", gpu_models.P100),
        ("a2-ultragpu-1g", gpu_models.A100_80),
        ("n1-standard-8", None),
        ("n1-standard-8+nvidia-b900:1", None),
    ],
)
def test_model_follows_the_accelerator_of_a_machine_type(name: str, model: GpuModel | None) -> None:
    instance = parse_instance_type(name)
    assert instance is not None
    assert machine_types.gpu_model_of(instance) is model


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("V100", gpu_models.V100),
        # EC2's name of the T4G, and EC2's name of both variants of the A100.
        ("T4g", gpu_models.T4G),
        ("A100", gpu_models.A100_40),
        ("h100", gpu_models.H100),
        ("Radeon Pro V520", None),
        ("A10", None),
    ],
)
def test_finds_models_by_name(name: str, model: GpuModel | None) -> None:
    assert find_gpu_model(name) is model


def test_old_gpus_need_an_image_with_the_proprietary_driver() -> None:
    assert find_driver_problem(gpu_models.T4, "the image", "image_id") is None
    problem = find_driver_problem(gpu_models.V100, "the image", "image_id")
    assert problem is not None
    assert problem.text.startswith("its GPU, V100 (Volta), is too old for the driver of the image")
    assert problem.remedy.endswith("an image with NVIDIA's proprietary driver in image_id")


def test_kepler_has_no_remedy_but_another_type() -> None:
    # The last driver is of branch 470, older than the boot script's minimum of 525.
    problem = find_driver_problem(gpu_models.K80, "the image", "image_id")
    assert problem is not None
    assert problem.remedy == "use another type"


def test_minimum_of_the_driver_is_that_of_the_boot_script() -> None:
    script = (REPOSITORY / "images" / "boot" / "gpus.sh").read_text()
    assert re.findall(r"(?m)^driver_min=(\d+)$", script) == [str(DRIVER_MIN)]
