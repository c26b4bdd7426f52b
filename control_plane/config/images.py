"""The image of a trial's container: the configured image, except for images of Determined.

Determined's images contain another harness and old versions of Python. Configurations from
Determined may name them. The name is replaced by the cluster's `task_container_defaults.image`, or
else by detcloud's image.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from control_plane.config.environment import DEVICE_KINDS, FORMER_KINDS, Images
from control_plane.config.eras import RULES, Tree
from control_plane.config.experiment import ExperimentConfig
from detcloud.shared.registries import DOCKER_HUB, registry_host, registry_of_image

RELEASE: Final = "0.1.0"
DEFAULT_IMAGES: Final = Images(
    cpu=f"detcloud/trial:{RELEASE}-cpu", cuda=f"detcloud/trial:{RELEASE}-cuda"
)
"""detcloud's images by kind of device, which are built from the folder `images`."""

# The prefix on Docker Hub of environments, pytorch-ngc, model-hub-transformers and all others.
_DETERMINED: Final = "determinedai/"


def images_to_run(images: Images) -> dict[str, str | None]:
    """Return the image to run for each kind of device.

    detcloud's images replace absent images and images of Determined. If detcloud has no image for
    the kind of device, such images become None.
    """
    configured = images.model_dump()
    ours = DEFAULT_IMAGES.model_dump()
    return {
        kind: ours[kind] if name is None or is_determined_image(name) else name
        for kind, name in configured.items()
    }


def replace_determined_images(tree: Tree, cluster: Tree) -> Tree:
    """Return the fields of a configuration with the cluster's images in place of Determined's.

    The image becomes a map by kind of device. An image stays if the cluster has none for the kind.
    Return `tree` unchanged if it names no image or the cluster's image is not a map by kind. A
    value that is not an image stays for the validation.

    Args:
        tree: the merged fields. Not changed.
        cluster: the cluster's layer of the configuration.
    """
    environment, below = tree.get("environment"), cluster.get("environment")
    own = below.get("image") if isinstance(below, Mapping) else None
    if not isinstance(environment, Mapping) or not isinstance(own, Mapping):
        return tree
    image = environment.get("image")
    if isinstance(image, str):
        image = dict.fromkeys(DEVICE_KINDS, image)
    if not isinstance(image, Mapping):
        return tree
    images = {
        kind: (own.get(FORMER_KINDS.get(kind, kind)) or name) if is_determined_image(name) else name
        for kind, name in image.items()
    }
    return {**tree, "environment": {**environment, "image": images}}


def image_warnings(config: ExperimentConfig) -> Iterator[str]:
    """Yield a warning for each image of Determined that a user configured and detcloud replaces.

    An image for several kinds of device causes a single warning. The default image of the era, and
    kinds of device without an image of detcloud, cause no warning.
    """
    defaults: Mapping[str, Any] = RULES[config.era].defaults.get("environment", {})
    ours = images_to_run(config.environment.image)
    kinds: dict[str, list[str]] = {}
    for kind, name in config.environment.image.model_dump().items():
        is_given = name is not None and name != defaults.get("image", {}).get(kind)
        if is_given and is_determined_image(name) and ours[kind] is not None:
            kinds.setdefault(name, []).append(kind)
    for name, having in kinds.items():
        place = f".{having[0]}" if len(having) == 1 else ""
        instead = " and ".join(str(ours[kind]) for kind in having)
        yield (
            f"environment.image{place}: {name} is one of Determined's images: containers run "
            f"{instead} instead, or what task_container_defaults.image names"
        )


def is_determined_image(name: object) -> bool:
    """Return whether `name` is a text that names an image of Determined on Docker Hub."""
    if not isinstance(name, str) or registry_of_image(name) != DOCKER_HUB:
        return False
    host = registry_host(name)
    return name.removeprefix(f"{host}/").startswith(_DETERMINED)
