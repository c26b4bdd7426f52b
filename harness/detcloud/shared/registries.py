"""The registries and repositories in names of images and in logins, with Docker's rules."""

from __future__ import annotations

import re
from typing import NamedTuple

DOCKER_HUB = "docker.io"
STEP_ERA_IMAGES = {
    "cpu": "determinedai/environments:py-3.6.9-pytorch-1.4-tf-1.15-cpu-0.5.0",
    "cuda": "determinedai/environments:cuda-10.0-pytorch-1.4-tf-1.15-gpu-0.5.0",
}
"""The default images in configurations of Determined's step era, by kind of device."""
_ECR_HOST = re.compile(r"([0-9]{12})\.dkr\.ecr\.([a-z0-9-]+)\.amazonaws\.com")
_ARTIFACT_HOST = re.compile(r"[a-z0-9-]+-docker\.pkg\.dev")
_DOCKER_HUBS = (DOCKER_HUB, "index.docker.io", "registry-1.docker.io")


class EcrRepository(NamedTuple):
    """A repository of a private registry of ECR, Amazon's registry service."""

    account: str
    region: str
    name: str

    @property
    def host(self) -> str:
        """The registry's host."""
        return f"{self.account}.dkr.ecr.{self.region}.amazonaws.com"

    @property
    def arn(self) -> str:
        """The repository's ARN, its name in policies."""
        return f"arn:aws:ecr:{self.region}:{self.account}:repository/{self.name}"


def ecr_repository(image: str) -> EcrRepository | None:
    """Return the ECR repository of an image, without the tag and digest.

    Return None for an image outside private ECR, and for an image without a name after the host.
    Only hosts `ACCOUNT.dkr.ecr.REGION.amazonaws.com` in lower case count. Hosts of China
    (`amazonaws.com.cn`) and FIPS hosts (`dkr.ecr-fips`) give None. Nothing is requested.
    """
    host, _, rest = image.partition("/")
    found = _ECR_HOST.fullmatch(host)
    name = rest.partition("@")[0].partition(":")[0]
    return EcrRepository(found[1], found[2], name) if found and name else None


def artifact_repository(image: str) -> str | None:
    """Return the Artifact Registry repository of an image, as HOST/PROJECT/REPOSITORY.

    Return None for an image outside Google's Artifact Registry, whose hosts end in
    `-docker.pkg.dev`, and for a name without an image after the repository. Images in `gcr.io` give
    None.
    """
    host, *rest = image.split("/")
    if not _ARTIFACT_HOST.fullmatch(host) or len(rest) < 3 or not all(rest):
        return None
    return "/".join((host, *rest[:2]))


def registry_of_image(name: str) -> str:
    """Return the host, with the port if any, of the registry of an image's name.

    The result is in lower case. All names of Docker Hub, and an image without a host, give
    DOCKER_HUB.
    """
    return registry_of_server(registry_host(name))


def is_login_for(server: str, image: str) -> bool:
    """Return whether a login for `server` is sent to the registry of an image.

    A login without a server is for the registry of the image.
    """
    return not server or registry_of_server(server) == registry_of_image(image)


def registry_of_server(server: str) -> str:
    """Return the host, with the port if any, of a login's `server`, which is a host or a URL.

    The result is in lower case, without path and without `https://` or `http://`. All names of
    Docker Hub give DOCKER_HUB. An empty `server` gives "". Nothing is checked.
    """
    host = server.removeprefix("https://").removeprefix("http://").partition("/")[0].lower()
    return DOCKER_HUB if host in _DOCKER_HUBS else host


def registry_host(name: str) -> str:
    """Return the host at the beginning of an image's name, or DOCKER_HUB without a host.

    The part in front of the first slash is a host if it contains a `.`, a `:` or an upper-case
    letter, or is `localhost`. The host, with the port if any, is returned as written, also for
    other names of Docker Hub.
    """
    host, slash, _ = name.partition("/")
    looks = "." in host or ":" in host or host == "localhost" or host != host.lower()
    return host if slash and looks else DOCKER_HUB
