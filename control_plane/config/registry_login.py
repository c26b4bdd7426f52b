"""Registry logins that trials inherit from the template or the cluster.

A container runtime sends the login to the registry of the image. An inherited login must therefore
be dropped if the user's image is in another registry, which would receive the secret.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from control_plane.config.eras import Tree
from control_plane.config.images import is_determined_image
from detcloud.shared.registries import DOCKER_HUB, registry_of_image, registry_of_server


def drop_foreign_login(tree: Tree, layers: Sequence[Tree]) -> Tree:
    """Return the merged fields without an inherited login that could reach another registry.

    The login is dropped if a layer above the login's layer names an image in a registry that the
    login is not for. Otherwise return `tree` itself. The arguments are not changed.

    Args:
        tree: the merged fields of all layers.
        layers: the layers, the uppermost first.
    """
    environments = [_map_in(layer, "environment") for layer in layers]
    owners = (
        n
        for n, environment in enumerate(environments)
        if environment.get("registry_auth") is not None
    )
    owner = next(owners, 0)
    named = {registry for above in environments[:owner] for registry in _image_registries(above)}
    merged = _map_in(tree, "environment")
    if "registry_auth" not in merged or named <= _login_registries(environments[owner:]):
        return tree
    rest = {name: item for name, item in merged.items() if name != "registry_auth"}
    return {**tree, "environment": rest}


def _login_registries(environments: Sequence[Tree]) -> set[str]:
    """Return the registries that the login of the first layer is for.

    These are the login's server, or else the registries of the images in the uppermost layer with
    images, or else Docker Hub.

    Args:
        environments: the sections `environment` of the login's layer and all lower layers, the
            uppermost first.
    """
    login = _map_in(environments[0], "registry_auth")
    server = login.get("server") or login.get("serveraddress")
    if server:
        return {registry_of_server(str(server))}
    below = (set(_image_registries(environment)) for environment in environments)
    return next(filter(None, below), {DOCKER_HUB})


def _image_registries(environment: Tree) -> Iterator[str]:
    """Yield the registry of each image in a section `environment`.

    Images of Determined are left out, because other images replace them.
    """
    image = environment.get("image")
    names = image.values() if isinstance(image, Mapping) else (image,)
    for name in names:
        if isinstance(name, str) and not is_determined_image(name):
            yield registry_of_image(name)


def _map_in(tree: Tree, name: str) -> Mapping[str, Any]:
    section = tree.get(name)
    return section if isinstance(section, Mapping) else {}
