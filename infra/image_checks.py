"""Findings about the images that the trials of pools run in by default."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol

from control_plane.config.environment import Images
from control_plane.config.images import (
    BLACKWELL_IMAGE,
    DEFAULT_IMAGE,
    PULLED_BYTES,
    UNOWNED_REMEDY,
    UNOWNED_TEXT,
    images_to_run,
    is_pinned_image,
    is_unowned_image,
)
from control_plane.config.pool_settings import task_defaults
from control_plane.config.pools import ClusterConfig, ResourcePool
from control_plane.config.providers import Provider
from detcloud.shared.registries import (
    artifact_repository,
    ecr_repository,
    registry_of_image,
    registry_of_server,
)
from infra.findings import Finding, Level, fine_finding
from infra.registry_reader import ImageAnswer, RefusedImage, StoredImage, read_image

# An estimate for downloading and unpacking, in compressed bytes.
PULLED_BYTES_PER_SECOND: Final = 15_000_000
_KINDS: Final = ("cpu", "cuda")
_SETTING: Final = "task_container_defaults.image"
_KNOWN: Final = frozenset({DEFAULT_IMAGE, BLACKWELL_IMAGE})


class ImageReader(Protocol):
    """A function that asks a registry for an image, like `read_image`."""

    def __call__(self, name: str, login: Mapping[str, str] | None = None) -> ImageAnswer:
        """Return the registry's answer for the image `name`."""


def check_images(cluster: ClusterConfig, read: ImageReader = read_image) -> list[Finding]:
    """Return findings on the default images of the trials in each pool with a provider.

    A finding has the image, and whether a digest pins the image; its size and the duration of a
    pull; and whether the registry has the image. A refusal of the registry is an error. Without an
    answer, the finding is a warning. Each image is asked once per login.
    """
    answers = dict[tuple[str, str], ImageAnswer]()
    findings: list[Finding] = []
    for pool in cluster.resource_pools:
        if pool.provider is None:
            continue
        environment = task_defaults(pool, cluster).get("environment", {})
        images = _pool_images(environment)
        for name, kinds in images.items():
            subject = f"image of pool {pool.pool_name}"
            if len(images) > 1:
                subject = f"{subject} ({' and '.join(kinds)})"
            if is_unowned_image(name):
                text = f"{name} {UNOWNED_TEXT}"
                findings.append(Finding(Level.ERROR, subject, text, UNOWNED_REMEDY))
                continue
            login = _login_for(name, environment)
            key = name, repr(login)
            if key not in answers:
                answers[key] = read(name, login)
            findings.append(_image_finding(subject, name, pool.provider, answers[key]))
            if name == DEFAULT_IMAGE and "cuda" in kinds:
                findings += _blackwell_finding(subject, pool)
    return findings


def _pool_images(environment: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the default images of a pool's trials, each with the kinds of device.

    `environment` is the section of the pool's default configuration.
    """
    given = environment.get("image") or {}
    configured = Images(**given) if isinstance(given, Mapping) else Images(cpu=given, cuda=given)
    images = images_to_run(configured)
    kinds = dict[str, list[str]]()
    for kind in _KINDS:
        if name := images[kind]:
            kinds.setdefault(name, []).append(kind)
    return kinds


def _login_for(name: str, environment: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the configured user and password for the registry of the image `name`.

    Return None without a login, for a login for another registry, and for a login by token.
    """
    login = environment.get("registry_auth") or {}
    server = str(login.get("server") or login.get("serveraddress") or "")
    if server and registry_of_server(server) != registry_of_image(name):
        return None
    words = {field: str(login.get(field) or "") for field in ("username", "password")}
    return words if all(words.values()) else None


def _image_finding(subject: str, name: str, provider: Provider, answer: ImageAnswer) -> Finding:
    """Return the finding for a registry's answer about the image `name`."""
    pinned = "pinned by digest" if is_pinned_image(name) else "not pinned by digest"
    if isinstance(answer, StoredImage):
        if not is_pinned_image(name) and answer.digest:
            pinned = f"{pinned} (now {answer.digest})"
        return fine_finding(subject, f"{name}: {pinned}, {_size_text(answer.size_bytes)}")
    if isinstance(answer, RefusedImage):
        return _refusal_finding(subject, name, provider, answer.status)
    if name in _KNOWN:
        pinned = f"{pinned}, about {_size_text(PULLED_BYTES)}"
    text = f"{name}: {pinned}; could not be checked: {answer.why}"
    remedy = "run the check where the registry answers; instances pull the image by themselves"
    return Finding(Level.WARNING, subject, text, remedy)


def _refusal_finding(subject: str, name: str, provider: Provider, status: int) -> Finding:
    """Return an error, or a warning if instances may have the image in spite of the refusal."""
    refusal = f"{name}: the registry answers {status}"
    if provider.has_own_machine_image:
        text = f"{refusal}, so the image could not be checked"
        remedy = "check that the pool's machine image contains the image"
        return Finding(Level.WARNING, subject, text, remedy)
    if status == 404:
        text = f"{refusal}: the registry does not have the image, so no trial can start"
        return Finding(Level.ERROR, subject, text, f"push the image, or correct {_SETTING}")
    if ecr_repository(name) is not None or artifact_repository(name) is not None:
        text = f"{refusal}, so the image could not be checked: the cluster issues the login"
        remedy = "check that the repository has the image, and is one of detcloud:imageRepositories"
        return Finding(Level.WARNING, subject, text, remedy)
    text = f"{refusal}: the image does not exist or needs a login, so no trial can start"
    remedy = f"push the image, correct {_SETTING}, or set task_container_defaults.registry_auth"
    return Finding(Level.ERROR, subject, text, remedy)


def _blackwell_finding(subject: str, pool: ResourcePool) -> Iterator[Finding]:
    """Yield a warning if the pool may launch instances that the default image does not support."""
    assert pool.provider is not None
    types = pool.provider.blackwell_types()
    if types:
        text = (
            f"the default image has torch for CUDA 12.6, which does not support Blackwell (GPUs of "
            f"{', '.join(types)})"
        )
        remedy = f'set {_SETTING} of the pool to {{cuda: "{BLACKWELL_IMAGE}"}}'
        yield Finding(Level.WARNING, subject, text, remedy)


def _size_text(size_bytes: int) -> str:
    minutes = math.ceil(size_bytes / PULLED_BYTES_PER_SECOND / 60)
    unit = "minute" if minutes == 1 else "minutes"
    size = f"{size_bytes / 1e9:.1f} GB compressed"
    return f"{size}, a first pull takes about {minutes} {unit}"
