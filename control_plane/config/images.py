"""The image of a trial's container: the configured image, except for images of Determined.

Determined's images contain another harness and old versions of Python. Configurations from
Determined may name them. The name is replaced by the cluster's `task_container_defaults.image`, or
else by the default image.

The default is PyTorch's own image on Docker Hub, pinned by digest. The image contains Python and
torch, and no packages for checkpoint stores: the agent's code brings these packages along
(`control_plane/agents/bundled_packages.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from control_plane.config.environment import DEVICE_KINDS, FORMER_KINDS, Images
from control_plane.config.eras import RULES, Tree
from control_plane.config.experiment import ExperimentConfig
from detcloud.shared.registries import DOCKER_HUB, registry_host, registry_of_image

DEFAULT_IMAGE: Final = (
    "docker.io/pytorch/pytorch:2.13.0-cuda12.6-cudnn9-runtime"
    "@sha256:6acf597eeb8e376a96580dde4952f37cc017fef732bb40bfc73f28f25e3f64b4"
)
"""PyTorch's image for x86-64, with GPUs of compute capability 5.0 to 9.0 or without GPUs."""
BLACKWELL_IMAGE: Final = (
    "docker.io/pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime"
    "@sha256:db80a41f8428644cebcb3d75b0b62df334ab6c0e75785951eb25f48bfbd42407"
)
"""PyTorch's image for x86-64 and GPUs of compute capability 7.5 to 12.0, such as Blackwell.

The image needs version 580 or newer of NVIDIA's driver. No trial runs in the image by default.
"""
PULLED_BYTES: Final = 3_000_000_000
"""The compressed size of both images, to one digit. PyTorch's image 2.11.0 for CUDA 13.0, with the
same contents, has 3,013,136,708 bytes."""
DEFAULT_IMAGES: Final = Images(cpu=DEFAULT_IMAGE, cuda=DEFAULT_IMAGE)
"""The default image by kind of device."""

# The prefix on Docker Hub of environments, pytorch-ngc, model-hub-transformers and all others.
_DETERMINED: Final = "determinedai/"
# The namespace of the default images of earlier versions. The project does not own the namespace.
_UNOWNED: Final = "detcloud/"
UNOWNED_TEXT: Final = (
    "is in a namespace of Docker Hub that does not belong to detcloud: any person may register "
    "the namespace, and then runs code with the credentials of trials"
)
UNOWNED_REMEDY: Final = "leave the image out, or name an image in a registry of yours"


def images_to_run(images: Images) -> dict[str, str | None]:
    """Return the image to run for each kind of device.

    The default image replaces absent images and images of Determined. If no default exists for the
    kind of device, the image becomes None.
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
    """Yield the warnings about the images that a user configured.

    An image of Determined that the default image replaces causes a warning, and so does an image in
    Docker Hub's namespace `detcloud`. An image for several kinds of device causes a single warning.
    The default image of the era, and kinds of device without a default image, cause no warning.
    """
    defaults: Mapping[str, Any] = RULES[config.era].defaults.get("environment", {})
    ours = images_to_run(config.environment.image)
    kinds: dict[str, list[str]] = {}
    for kind, name in config.environment.image.model_dump().items():
        is_given = name is not None and name != defaults.get("image", {}).get(kind)
        if is_given and ours[kind] is not None:
            kinds.setdefault(name, []).append(kind)
    for name, having in kinds.items():
        is_for_all = len(having) > 1
        place = "environment.image" + ("" if is_for_all else f".{having[0]}")
        if is_determined_image(name):
            instead = " and ".join(dict.fromkeys(str(ours[kind]) for kind in having))
            yield (
                f"{place}: {name} is one of Determined's images: containers run "
                f"{instead} instead, or what task_container_defaults.image names"
            )
        elif is_unowned_image(name):
            yield f"{place}: {name} {UNOWNED_TEXT}; {UNOWNED_REMEDY}"


def is_determined_image(name: object) -> bool:
    """Return whether `name` is a text that names an image of Determined on Docker Hub."""
    return _is_in_namespace(name, _DETERMINED)


def is_unowned_image(name: object) -> bool:
    """Return whether `name` is a text that names an image in Docker Hub's namespace `detcloud`.

    The default images of earlier versions had names in this namespace, which the project does not
    own.
    """
    return _is_in_namespace(name, _UNOWNED)


def is_pinned_image(name: str) -> bool:
    """Return whether an image's name has a digest, so that the content cannot change."""
    return "@sha256:" in name


def _is_in_namespace(name: object, namespace: str) -> bool:
    """Return whether `name` is a text that names an image in a namespace of Docker Hub."""
    if not isinstance(name, str) or registry_of_image(name) != DOCKER_HUB:
        return False
    host = registry_host(name)
    return name.removeprefix(f"{host}/").startswith(namespace)
