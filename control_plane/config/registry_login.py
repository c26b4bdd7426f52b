"""Registry logins that trials inherit from the template or the cluster.

The name of the image decides where a login is sent. So an inherited login stays with the registry
that it was given for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from control_plane.config.eras import Tree
from control_plane.config.images import is_determined_image
from detcloud.shared.registries import DOCKER_HUB, registry_of_image, registry_of_server


def drop_foreign_login(tree: Tree, layers: Sequence[Tree]) -> Tree:
    """Drop the login from the merged tree of `layers`, the uppermost first, if a layer above the
    login's own names an image of another registry.
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
    """Return the registries that the first layer's login is for: its server, else those of the
    images.
    """
    login = _map_in(environments[0], "registry_auth")
    server = login.get("server") or login.get("serveraddress")
    if server:
        return {registry_of_server(str(server))}
    below = (set(_image_registries(environment)) for environment in environments)
    return next(filter(None, below), {DOCKER_HUB})


def _image_registries(environment: Tree) -> Iterator[str]:
    """Yield the registries of the images, except Determined's, which the cluster's replace."""
    image = environment.get("image")
    names = image.values() if isinstance(image, Mapping) else (image,)
    for name in names:
        if isinstance(name, str) and not is_determined_image(name):
            yield registry_of_image(name)


def _map_in(tree: Tree, name: str) -> Mapping[str, Any]:
    section = tree.get(name)
    return section if isinstance(section, Mapping) else {}
