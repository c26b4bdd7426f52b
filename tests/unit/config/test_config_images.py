"""Which image a trial runs in, and what becomes of names that are Determined's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import detcloud
from control_plane.config.__main__ import main
from control_plane.config.check import check_config
from control_plane.config.images import (
    DEFAULT_IMAGES,
    RELEASE,
    image_warnings,
    images_to_run,
    is_determined_image,
)
from tests.unit.config.samples import LENGTH, STEP, change_fields, check_changed, to_yaml

THEIRS = "determinedai/environments:cuda-11.3-pytorch-1.12-gpu-0.21.0"


def images_to_run_of(image: Any, cluster: Any = None) -> dict[str, str | None]:
    layer = {"environment": {"image": cluster}} if cluster else None
    config = check_config(
        to_yaml(change_fields(LENGTH, {"environment.image": image})), cluster=layer
    )
    return images_to_run(config.environment.image)


def test_a_configured_image_is_run_for_each_kind_of_device() -> None:
    assert images_to_run_of("org/image:1") == dict.fromkeys(("cpu", "cuda", "rocm"), "org/image:1")
    assert images_to_run_of({"gpu": "org/gpu:1"})["cuda"] == "org/gpu:1"


@pytest.mark.parametrize("image", [None, {"cpu": None}, THEIRS, {"cpu": THEIRS, "gpu": THEIRS}])
def test_without_one_and_for_determineds_ours_is_run(image: Any) -> None:
    changes = {"environment.image": image} if image else {}
    config = check_changed(LENGTH, changes)
    found = images_to_run(config.environment.image)
    assert (found["cpu"], found["cuda"], found["rocm"]) == (
        DEFAULT_IMAGES.cpu,
        DEFAULT_IMAGES.cuda,
        None,
    )


@pytest.mark.parametrize(
    ("image", "is_theirs"),
    [
        ("determinedai/environments:cuda-11.3-pytorch-1.12-gpu-0.21.0", True),
        ("determinedai/pytorch-ngc:0.38.1", True),
        ("determinedai/pytorch-tensorflow-cuda:0.33.0", True),
        ("determinedai/model-hub-transformers@sha256:0", True),
        ("docker.io/determinedai/tensorflow-ngc", True),
        ("index.docker.io/determinedai/environments-dev:x", True),
        # A copy in a registry of the team's own, or of somebody with a similar name, is theirs.
        ("registry.org/determinedai/environments:x", False),
        ("determinedai2/environments", False),
        ("org/determinedai/environments", False),
        ("determinedai", False),
    ],
)
def test_all_of_determineds_images_on_docker_hub_are_determineds(
    image: str, is_theirs: bool
) -> None:
    assert is_determined_image(image) == is_theirs
    found = images_to_run_of(image)
    assert found["cpu"] == (DEFAULT_IMAGES.cpu if is_theirs else image)


def test_the_step_eras_default_is_one_of_determineds_and_is_silent() -> None:
    config = check_changed(STEP, {})
    assert config.environment.image.cpu
    assert config.environment.image.cpu.startswith("determinedai/environments:py-3.6.9")
    assert images_to_run(config.environment.image)["cpu"] == DEFAULT_IMAGES.cpu
    assert list(image_warnings(config)) == []


@pytest.mark.parametrize("image", [THEIRS, {"cpu": THEIRS, "gpu": THEIRS}])
def test_the_clusters_image_comes_before_determineds_but_not_before_the_users(image: Any) -> None:
    own = {"cpu": "org/cpu:2", "cuda": "org/cuda:2"}
    found = images_to_run_of(image, own)
    assert (found["cpu"], found["cuda"]) == ("org/cpu:2", "org/cuda:2")
    assert images_to_run_of("org/image:1", own)["cpu"] == "org/image:1"
    assert images_to_run_of({"cpu": THEIRS}, {"cuda": "org/cuda:2"})["cpu"] == DEFAULT_IMAGES.cpu


def test_a_check_warns_of_the_names_that_stand_for_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
        # Determined wrote it into every configuration, and no slot has that kind.
        ({"rocm": THEIRS}, []),
    ],
)
def test_an_image_is_warned_of_once_for_all_kinds_that_have_it(
    image: Any, places: list[str]
) -> None:
    warnings = list(image_warnings(check_changed(LENGTH, {"environment.image": image})))
    assert [warning.split(": ")[0] for warning in warnings] == places


def test_our_images_have_the_version_of_the_package() -> None:
    assert detcloud.__version__ == RELEASE
