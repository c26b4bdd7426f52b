"""The images that trials run in, and the replacement of images of Determined."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from control_plane.config.__main__ import main
from control_plane.config.check import check_config
from control_plane.config.images import (
    BLACKWELL_IMAGE,
    DEFAULT_IMAGES,
    image_warnings,
    images_to_run,
    is_determined_image,
    is_pinned_image,
)
from detcloud.shared.registries import registry_of_image
from tests.unit.config.samples import LENGTH, STEP, change_fields, check_changed, to_yaml

THEIRS = "determinedai/environments:cuda-11.3-pytorch-1.12-gpu-0.21.0"


def images_to_run_of(image: Any, cluster: Any = None) -> dict[str, str | None]:
    layer = {"environment": {"image": cluster}} if cluster else None
    config = check_config(
        to_yaml(change_fields(LENGTH, {"environment.image": image})), cluster=layer
    )
    return images_to_run(config.environment.image)


def test_configured_image_runs_on_all_device_kinds() -> None:
    assert images_to_run_of("org/image:1") == dict.fromkeys(("cpu", "cuda", "rocm"), "org/image:1")
    assert images_to_run_of({"gpu": "org/gpu:1"})["cuda"] == "org/gpu:1"


@pytest.mark.parametrize("image", [None, {"cpu": None}, THEIRS, {"cpu": THEIRS, "gpu": THEIRS}])
def test_default_image_replaces_missing_images_and_images_of_determined(image: Any) -> None:
    changes = {"environment.image": image} if image else {}
    config = check_changed(LENGTH, changes)
    images = images_to_run(config.environment.image)
    assert (images["cpu"], images["cuda"], images["rocm"]) == (
        DEFAULT_IMAGES.cpu,
        DEFAULT_IMAGES.cuda,
        None,
    )


@pytest.mark.parametrize(
    ("image", "is_determined"),
    [
        ("determinedai/environments:cuda-11.3-pytorch-1.12-gpu-0.21.0", True),
        ("determinedai/pytorch-ngc:0.38.1", True),
        ("determinedai/pytorch-tensorflow-cuda:0.33.0", True),
        ("determinedai/model-hub-transformers@sha256:0", True),
        ("docker.io/determinedai/tensorflow-ngc", True),
        ("index.docker.io/determinedai/environments-dev:x", True),
        # Copies in other registries, and organizations with similar names, are not replaced.
        ("registry.org/determinedai/environments:x", False),
        ("determinedai2/environments", False),
        ("org/determinedai/environments", False),
        ("determinedai", False),
    ],
)
def test_recognizes_images_of_determined_on_docker_hub(image: str, is_determined: bool) -> None:
    assert is_determined_image(image) == is_determined
    images = images_to_run_of(image)
    assert images["cpu"] == (DEFAULT_IMAGES.cpu if is_determined else image)


def test_default_image_of_the_step_era_is_replaced_without_a_warning() -> None:
    config = check_changed(STEP, {})
    assert config.environment.image.cpu
    assert config.environment.image.cpu.startswith("determinedai/environments:py-3.6.9")
    assert images_to_run(config.environment.image)["cpu"] == DEFAULT_IMAGES.cpu
    assert list(image_warnings(config)) == []


@pytest.mark.parametrize("image", [THEIRS, {"cpu": THEIRS, "gpu": THEIRS}])
def test_cluster_image_replaces_images_of_determined_only(image: Any) -> None:
    own = {"cpu": "org/cpu:2", "cuda": "org/cuda:2"}
    images = images_to_run_of(image, own)
    assert (images["cpu"], images["cuda"]) == ("org/cpu:2", "org/cuda:2")
    assert images_to_run_of("org/image:1", own)["cpu"] == "org/image:1"
    assert images_to_run_of({"cpu": THEIRS}, {"cuda": "org/cuda:2"})["cpu"] == DEFAULT_IMAGES.cpu


def test_check_warns_of_replaced_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(change_fields(LENGTH, {"environment.image": {"cpu": THEIRS}})))
    warning = (
        f"environment.image.cpu: {THEIRS} is one of Determined's images: containers run "
        f"{DEFAULT_IMAGES.cpu} instead, or what task_container_defaults.image names"
    )
    assert main([str(file)]) == 0
    assert f"warning: {warning}" in capsys.readouterr().out
    assert main([str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["warnings"] == [warning]


@pytest.mark.parametrize(
    ("image", "places"),
    [
        (THEIRS, ["environment.image"]),
        ({"cpu": THEIRS, "gpu": THEIRS}, ["environment.image"]),
        (
            {"cpu": THEIRS, "gpu": f"{THEIRS}-2"},
            ["environment.image.cpu", "environment.image.cuda"],
        ),
        # Determined wrote `rocm` into every configuration, but no slot is of this kind.
        ({"rocm": THEIRS}, []),
    ],
)
def test_warns_once_of_an_image_for_all_device_kinds(image: Any, places: list[str]) -> None:
    warnings = list(image_warnings(check_changed(LENGTH, {"environment.image": image})))
    assert [warning.split(": ")[0] for warning in warnings] == places


@pytest.mark.parametrize(
    ("image", "places"),
    [
        # The default images of earlier versions, from the documentation of those versions.
        ("detcloud/trial:0.1.0-cpu", ["environment.image"]),
        ("docker.io/detcloud/trial", ["environment.image"]),
        ({"cuda": "index.docker.io/detcloud/x@sha256:0"}, ["environment.image.cuda"]),
        ("registry.example/detcloud/trial:0.1.0-cpu", []),
        ("detcloud-team/trial", []),
        ("detcloud", []),
    ],
)
def test_warns_of_images_in_a_namespace_that_anybody_may_register(
    image: Any, places: list[str]
) -> None:
    warnings = list(image_warnings(check_changed(LENGTH, {"environment.image": image})))
    assert [warning.split(": ")[0] for warning in warnings] == places
    assert all(
        "credentials" in warning and "leave the image out" in warning for warning in warnings
    )


def test_default_images_are_pinned_images_of_pytorch() -> None:
    for image in (DEFAULT_IMAGES.cpu, DEFAULT_IMAGES.cuda, BLACKWELL_IMAGE):
        assert image
        assert registry_of_image(image) == "docker.io"
        assert image.startswith("docker.io/pytorch/pytorch:")
        assert is_pinned_image(image)
        assert re.fullmatch("[0-9a-f]{64}", image.partition("@sha256:")[2])


def test_default_images_have_the_tested_version_of_torch() -> None:
    constraints = (Path(__file__).parents[3] / "constraints.txt").read_text()
    version = re.search(r"^torch==(.+)$", constraints, re.MULTILINE)
    assert version
    for image in (DEFAULT_IMAGES.cpu, DEFAULT_IMAGES.cuda, BLACKWELL_IMAGE):
        assert f":{version[1]}-" in str(image)
