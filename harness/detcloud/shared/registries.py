"""Names of images: the registry that one, or a login, means, as Docker reads them."""

from __future__ import annotations

import re
from typing import NamedTuple

DOCKER_HUB = "docker.io"
STEP_ERA_IMAGES = {
    "cpu": "determinedai/environments:py-3.6.9-pytorch-1.4-tf-1.15-cpu-0.5.0",
    "cuda": "determinedai/environments:cuda-10.0-pytorch-1.4-tf-1.15-gpu-0.5.0",
}
"""What configurations of the step era have where they name no image."""
_ECR_HOST = re.compile(r"([0-9]{12})\.dkr\.ecr\.([a-z0-9-]+)\.amazonaws\.com")
_ARTIFACT_HOST = re.compile(r"[a-z0-9-]+-docker\.pkg\.dev")
_DOCKER_HUBS = (DOCKER_HUB, "index.docker.io", "registry-1.docker.io")


class EcrRepository(NamedTuple):
    """A repository of a private registry of ECR, Amazon's."""

    account: str
    region: str
    name: str

    @property
    def host(self) -> str:
        """The registry's host."""
        return f"{self.account}.dkr.ecr.{self.region}.amazonaws.com"

    @property
    def arn(self) -> str:
        """The repository's name for policies."""
        return f"arn:aws:ecr:{self.region}:{self.account}:repository/{self.name}"


def ecr_repository(image: str) -> EcrRepository | None:
    """The repository of an image that is in a private registry of ECR; None for any other."""
    host, _, rest = image.partition("/")
    found = _ECR_HOST.fullmatch(host)
    name = rest.partition("@")[0].partition(":")[0]
    return EcrRepository(found[1], found[2], name) if found and name else None


def artifact_repository(image: str) -> str | None:
    """The repository of Google's Artifact Registry that has an image, HOST/PROJECT/REPOSITORY;
    None for an image elsewhere.
    """
    host, *rest = image.split("/")
    if not _ARTIFACT_HOST.fullmatch(host) or len(rest) < 3 or not all(rest):
        return None
    return "/".join((host, *rest[:2]))


def registry_of_image(name: str) -> str:
    """The host, and the port if there is one, of the registry that has the image."""
    return registry_of_server(registry_host(name))


def registry_of_server(server: str) -> str:
    """The registry's host, and its port if any, of a login's `server`: a host or an address."""
    host = server.removeprefix("https://").removeprefix("http://").partition("/")[0].lower()
    return DOCKER_HUB if host in _DOCKER_HUBS else host


def registry_host(name: str) -> str:
    """The host that an image's name begins with, Docker Hub if it begins with none."""
    host, slash, _ = name.partition("/")
    looks = "." in host or ":" in host or host == "localhost" or host != host.lower()
    return host if slash and looks else DOCKER_HUB
