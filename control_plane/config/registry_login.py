"""The registry's login that a trial gets from the template or the cluster.

Whoever names the image chooses where a login is sent. So one that is inherited stays with the
registry that it was given for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from control_plane.config.eras import Tree
from control_plane.config.images import is_determined
from detcloud.registries import DOCKER_HUB, registry_of_image, registry_of_server


def without_strayed_login(tree: Tree, layers: Sequence[Tree]) -> Tree:
    """What the layers, the uppermost first, were merged to, without a login that one above its own
    would send to another registry.
    """
    environments = [_map_in(layer, "environment") for layer in layers]
    owners = (n for n, it in enumerate(environments) if it.get("registry_auth") is not None)
    owner = next(owners, 0)
    named = {registry for above in environments[:owner] for registry in _registries(above)}
    merged = _map_in(tree, "environment")
    if "registry_auth" not in merged or named <= _meant(environments[owner:]):
        return tree
    kept = {name: it for name, it in merged.items() if name != "registry_auth"}
    return {**tree, "environment": kept}


def _meant(environments: Sequence[Tree]) -> set[str]:
    """The registries that the first one's login is for: its server, else those of its images."""
    server = _map_in(environments[0], "registry_auth").get("server")
    if server:
        return {registry_of_server(str(server))}
    below = (set(_registries(environment)) for environment in environments)
    return next(filter(None, below), {DOCKER_HUB})


def _registries(environment: Tree) -> Iterator[str]:
    """Of its images, but for those that the cluster's own stand for."""
    image = environment.get("image")
    names = image.values() if isinstance(image, Mapping) else (image,)
    for name in names:
        if isinstance(name, str) and not is_determined(name):
            yield registry_of_image(name)


def _map_in(tree: Tree, name: str) -> Mapping[str, Any]:
    found = tree.get(name)
    return found if isinstance(found, Mapping) else {}
