"""Findings about the images of pools' trials."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from control_plane.config.images import BLACKWELL_IMAGE, DEFAULT_IMAGE
from control_plane.config.pools import check_cluster
from infra.findings import Finding, Level
from infra.image_checks import check_images
from infra.registry_reader import ImageAnswer, RefusedImage, StoredImage, UnreadImage

OWN = "registry.example/trial:1"
DIGEST = f"sha256:{'a' * 64}"
# 15 MB/s, so 600 MB take 40 s, and 3,000 MB take 200 s: in whole minutes 1 and 4.
STORED = StoredImage(DIGEST, 600_000_000)


class Images:
    """The answers of registries, by image; `asked` has the requests."""

    def __init__(self, answers: Mapping[str, ImageAnswer]) -> None:
        self.answers = answers
        self.asked: list[tuple[str, Mapping[str, str] | None]] = []

    def __call__(self, name: str, login: Mapping[str, str] | None = None) -> ImageAnswer:
        self.asked.append((name, login))
        return self.answers[name]


def findings(
    answers: Mapping[str, ImageAnswer], pool: str = "type: aws", more: str = ""
) -> list[Finding]:
    text = f"resource_pools: [{{pool_name: default, provider: {{{pool}}}}}]\n{more}\n"
    return check_images(check_cluster(text), Images(answers))


def container(image: str, more: str = "") -> str:
    return f"task_container_defaults: {{image: {image!r}{more}}}"


def test_default_image_is_pinned_with_size_and_duration() -> None:
    (found,) = findings({DEFAULT_IMAGE: StoredImage(DIGEST, 3_000_000_000)})
    assert (found.level, found.subject) == (Level.FINE, "image of pool default")
    assert found.text == (
        f"{DEFAULT_IMAGE}: pinned by digest, 3.0 GB compressed, a first pull takes about 4 minutes"
    )


def test_image_by_tag_is_reported_with_its_digest() -> None:
    (found,) = findings({OWN: STORED}, more=container(OWN))
    assert found.level is Level.FINE
    assert found.text == (
        f"{OWN}: not pinned by digest (now {DIGEST}), 0.6 GB compressed, a first pull takes about "
        "1 minute"
    )


@pytest.mark.parametrize("status", [401, 403, 404])
def test_refused_image_is_an_error(status: int) -> None:
    (found,) = findings({OWN: RefusedImage(status)}, more=container(OWN))
    assert found.level is Level.ERROR
    assert OWN in found.text
    assert str(status) in found.text
    assert ("registry_auth" in found.remedy) == (status != 404)
    assert "task_container_defaults.image" in found.remedy


@pytest.mark.parametrize(
    ("image", "pool"),
    [
        # The cluster issues logins for these registries to its agents.
        ("123456789012.dkr.ecr.eu-west-1.amazonaws.com/ml/trial:1", "type: aws"),
        ("us-docker.pkg.dev/acme/images/trial:1", "type: gcp, project: acme"),
        # The pool's own machine image may contain the image.
        (OWN, "type: aws, image_id: ami-0123456789abcdef0"),
    ],
)
def test_refused_image_that_instances_may_have_is_a_warning(image: str, pool: str) -> None:
    (found,) = findings({image: RefusedImage(401)}, pool, container(image))
    assert found.level is Level.WARNING
    assert "could not be checked" in found.text


def test_silent_registry_is_a_warning_with_the_known_size() -> None:
    (found,) = findings({DEFAULT_IMAGE: UnreadImage("registry-1.docker.io does not answer")})
    assert found.level is Level.WARNING
    assert "pinned by digest, about 3.0 GB compressed" in found.text
    assert "could not be checked: registry-1.docker.io does not answer" in found.text
    (found,) = findings({OWN: UnreadImage("why")}, more=container(OWN))
    assert found.text == f"{OWN}: not pinned by digest; could not be checked: why"


def test_image_in_the_namespace_of_others_is_an_error_without_a_request() -> None:
    (found,) = findings({}, more=container("detcloud/trial:0.1.0-cpu"))
    assert found.level is Level.ERROR
    assert "does not belong to detcloud" in found.text


def test_images_of_device_kinds_are_reported_apart() -> None:
    defaults = f"task_container_defaults: {{image: {{cpu: {OWN!r}}}}}"
    found = findings({OWN: STORED, DEFAULT_IMAGE: STORED}, more=defaults)
    assert [one.subject for one in found] == [
        "image of pool default (cpu)",
        "image of pool default (cuda)",
    ]


@pytest.mark.parametrize(
    ("pool", "types"),
    [
        ("type: aws, instance_type: g7e.2xlarge", "g7e.2xlarge"),
        ("type: aws, offerings: [{instance_type: p6-b200.48xlarge}]", "p6-b200.48xlarge"),
        ("type: gcp, project: p, instance_type: {machine_type: g4-standard-48}", "g4-standard-48"),
        ("type: gcp, project: p, offerings: [{instance_type: a4-highgpu-8g}]", "a4-highgpu-8g"),
        ("type: aws, instance_type: p5.48xlarge", ""),
        ("type: gcp, project: p, instance_type: {machine_type: a3-highgpu-8g}", ""),
    ],
)
def test_warns_of_gpus_that_the_default_image_does_not_support(pool: str, types: str) -> None:
    found = findings({DEFAULT_IMAGE: STORED}, pool)
    warnings = [one for one in found if one.level is Level.WARNING]
    assert len(warnings) == bool(types)
    for one in warnings:
        assert f"Blackwell (GPUs of {types.split('+')[0]}" in one.text
        assert BLACKWELL_IMAGE in one.remedy


def test_own_image_for_blackwell_causes_no_warning() -> None:
    pool = "type: aws, instance_type: g7e.2xlarge"
    found = findings({BLACKWELL_IMAGE: STORED}, pool, container(BLACKWELL_IMAGE))
    assert [one.level for one in found] == [Level.FINE]


def test_each_image_is_asked_once_with_the_login_for_its_registry() -> None:
    pools = "resource_pools: [{pool_name: default, provider: {type: aws}}, "
    pools += "{pool_name: b, provider: {type: aws}}, {pool_name: local}]"
    login = ", registry_auth: {username: pull, password: canary}"
    text = f"{pools}\n{container(OWN, login)}\n"
    images = Images({OWN: STORED})
    assert len(check_images(check_cluster(text), images)) == 2
    assert images.asked == [(OWN, {"username": "pull", "password": "canary"})]


def test_login_for_another_registry_is_not_sent() -> None:
    login = ", registry_auth: {username: pull, password: canary, server: other.example}"
    images = Images({OWN: STORED})
    pools = "resource_pools: [{pool_name: default, provider: {type: aws}}]"
    text = f"{pools}\n{container(OWN, login)}\n"
    check_images(check_cluster(text), images)
    assert images.asked == [(OWN, None)]
