"""Which registry an image's name means, and which one a login: as Docker reads them."""

from __future__ import annotations

DOCKER_HUB = "docker.io"
_DOCKER_HUBS = (DOCKER_HUB, "index.docker.io", "registry-1.docker.io")


def registry_of_image(name: str) -> str:
    """The host, and the port if there is one, of the registry that has the image."""
    return registry_of_server(registry_in(name))


def registry_of_server(server: str) -> str:
    """The same of a login's `server`, which may be an address: https://HOST:PORT/v1/."""
    host = server.removeprefix("https://").removeprefix("http://").partition("/")[0].lower()
    return DOCKER_HUB if host in _DOCKER_HUBS else host


def registry_in(name: str) -> str:
    """What comes before an image's first slash, if it looks like a registry; else Docker Hub."""
    host, slash, _ = name.partition("/")
    looks = "." in host or ":" in host or host == "localhost" or host != host.lower()
    return host if slash and looks else DOCKER_HUB
