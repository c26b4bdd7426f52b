"""The settings of an experiment that only have an effect in containers.

The log of each run without a container has a notice for each such setting. The answer to a
submission has the notices too, if all agents that may run the experiment use no containers.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from typing import Any

from detcloud.shared.registries import STEP_ERA_IMAGES

AGENT = "this agent runs trials as processes"
CONTAINERS_ONLY = (
    ("environment", "force_pull_image"),
    ("environment", "registry_auth"),
    ("resources", "shm_size"),
    ("resources", "devices"),
)
DEFAULT_PROPAGATION = "rprivate"
_FOLDERS = {"shared_fs": ("host_storage_path", "container_storage_path")}
_BUCKET_FOLDERS = ("local_cache_host_path", "local_cache_container_path")


def process_setting_notices(
    config: Mapping[str, Any], *, device: str, reason: str = AGENT
) -> Iterator[str]:
    """Yield a sentence for each configured setting that has no effect without containers.

    The settings are the image, CONTAINERS_ONLY, mounts, the propagation of the checkpoint storage
    and the data layer's folder in the container. Missing, null, false and empty values are skipped,
    and the propagation `rprivate`; 0 counts as configured. The data layer has a sentence if its
    folder in the container differs from the host's. A mount has one sentence at most: if its
    absolute path in the container differs from the host's, else if it sets `read_only` or another
    propagation.

    Raise KeyError for a mount without a path. A section that is no dict counts as missing. `config`
    is the configuration as JSON values. `device` is the type of the slots. `reason` names the
    agents without containers, and is part of each sentence.
    """
    if image := configured_image(_section(config, "environment"), device=device):
        yield f"image {image} is not used: {reason}"
    for name, field in CONTAINERS_ONLY:
        value = _section(config, name).get(field)
        # Zero bytes of shared memory is a configured value, too.
        if value is not None and value is not False and value not in ([], {}):
            yield f"{name}.{field} is not used: {reason}"
    for mount in config.get("bind_mounts") or ():
        yield from _mount_notices(mount, reason)
    propagation = _section(config, "checkpoint_storage").get("propagation") or DEFAULT_PROPAGATION
    if propagation != DEFAULT_PROPAGATION:
        yield f"checkpoint_storage.propagation {propagation} cannot be enforced: {reason}"
    host, container = data_layer_folders(config)
    if host and container and posixpath.normpath(container) != posixpath.normpath(host):
        field = _folder_fields(_section(config, "data_layer"))[1]
        yield (
            f"data_layer.{field} is not used: {reason}, which find the folder at "
            f"{posixpath.normpath(host)}"
        )


def configured_image(environment: Mapping[str, Any], *, device: str) -> str:
    """Return the configured image for a kind of device. Return "" without an image.

    `environment` is the section of the configuration. A text counts for all devices. In a dict of
    images, `gpu` is a former name of `cuda`, and Determined's former default image for the kind, in
    STEP_ERA_IMAGES, counts as no image. A null image gives "". A value of another type becomes
    text.
    """
    image = environment.get("image")
    if isinstance(image, dict):
        kind = device if device in ("cuda", "rocm") else "cpu"
        image = image.get(kind) or (image.get("gpu") if kind == "cuda" else None)
        if image == STEP_ERA_IMAGES.get(kind):
            return ""
    return str(image or "")


def data_layer_folders(config: Mapping[str, Any]) -> tuple[str, str]:
    """Return the configured data layer folders on the host and in the container.

    For the type `shared_fs`, the default, the folders are the storage's, for other types the local
    cache's. Paths are returned as configured, without a check. A missing, null or empty folder is
    "".
    """
    section = _section(config, "data_layer")
    host, container = (section.get(name) or "" for name in _folder_fields(section))
    return host, container


def _mount_notices(mount: Mapping[str, Any], reason: str) -> Iterator[str]:
    host = posixpath.normpath(mount["host_path"])
    container = posixpath.normpath(mount["container_path"])
    if posixpath.isabs(container) and container != host:
        yield (
            f"bind mount {container} is not made: {reason}; use the host's path {host}, or a "
            "relative container_path"
        )
        return
    missing = ["read_only"] if mount.get("read_only") else []
    propagation = mount.get("propagation") or DEFAULT_PROPAGATION
    if propagation != DEFAULT_PROPAGATION:
        missing.append(f"propagation {propagation}")
    if missing:
        yield f"bind mount {container}: {' and '.join(missing)} cannot be enforced: {reason}"


def _folder_fields(section: Mapping[str, Any]) -> tuple[str, str]:
    return _FOLDERS.get(section.get("type", "shared_fs"), _BUCKET_FOLDERS)


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = config.get(name)
    return section if isinstance(section, dict) else {}
