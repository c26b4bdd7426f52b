"""The size and the digest of an image in a container registry, over the registry's HTTP API.

The reader sends a configured login only to the image's registry, and to the token service that the
registry names, as container engines do.
"""

from __future__ import annotations

import base64
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any

from detcloud.shared.registries import DOCKER_HUB, registry_host, registry_of_image

SECONDS_MAX = 10
_HUB_ADDRESS = "registry-1.docker.io"
_PLATFORM = {"os": "linux", "architecture": "amd64"}
_KINDS = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
_PARAMETER = re.compile(r'([a-z_]+)="([^"]*)"')
_ANSWER_BYTES_MAX = 4 << 20


@dataclass(frozen=True)
class StoredImage:
    """An image that the registry would send."""

    digest: str
    """The digest of the image's name, such as sha256:6acf... Empty if the registry names none."""
    size_bytes: int
    """The compressed size of all layers for Linux on x86-64."""


@dataclass(frozen=True)
class RefusedImage:
    """An image that the registry does not send."""

    status: int
    """The HTTP status: 401, 403 or 404."""


@dataclass(frozen=True)
class UnreadImage:
    """An image of a registry that gave no usable answer."""

    why: str
    """The reason in words."""


ImageAnswer = StoredImage | RefusedImage | UnreadImage


def read_image(name: str, login: Mapping[str, str] | None = None) -> ImageAnswer:
    """Ask the image's registry for the image `name`.

    Only descriptions are requested, no layers. `login` has `username` and `password`; None asks
    without a login. A registry on this machine is asked without TLS. Return RefusedImage for the
    statuses 401, 403 and 404. Return UnreadImage for other statuses, unusable answers and failed
    connections.
    """
    host = registry_host(name)
    repository, reference = _split_name(name.removeprefix(f"{host}/"))
    if registry_of_image(name) == DOCKER_HUB:
        host = _HUB_ADDRESS
        repository = repository if "/" in repository else f"library/{repository}"
    scheme = "http" if host.partition(":")[0] in ("localhost", "127.0.0.1") else "https"
    client = _RegistryClient(f"{scheme}://{host}/v2/{repository}/manifests/", login)
    try:
        digest, manifest = client.read(reference)
        if "manifests" in manifest:
            _, manifest = client.read(_digest_for_platform(manifest["manifests"]))
        parts = [manifest["config"], *manifest["layers"]]
        return StoredImage(digest, sum(int(part["size"]) for part in parts))
    except urllib.error.HTTPError as error:
        if error.code in (401, 403, 404):
            return RefusedImage(error.code)
        return UnreadImage(f"{host} answered with status {error.code}")
    except (OSError, HTTPException) as error:
        return UnreadImage(f"{host} does not answer: {getattr(error, 'reason', None) or error}")
    except (ValueError, KeyError, TypeError, AttributeError):
        return UnreadImage(f"{host} answered without a description of the image's layers")


class _RegistryClient:
    """Requests for the descriptions of an image. `login` is sent only after a registry asks."""

    def __init__(self, url: str, login: Mapping[str, str] | None) -> None:
        self._url = url
        self._login = login
        self._authorization = ""

    def read(self, reference: str) -> tuple[str, Any]:
        """Return the digest and the description of a tag or a digest.

        Raise HTTPError if the registry refuses, another OSError or HTTPException without an answer,
        and ValueError for an answer that is no JSON.
        """
        try:
            return self._ask(reference)
        except urllib.error.HTTPError as error:
            authorization = ""
            if error.code == 401 and not self._authorization:
                authorization = self._answer_challenge(error.headers.get("WWW-Authenticate") or "")
            if not authorization:
                raise
            self._authorization = authorization
        return self._ask(reference)

    def _ask(self, reference: str) -> tuple[str, Any]:
        request = urllib.request.Request(self._url + reference, headers={"Accept": _KINDS})
        if self._authorization:
            # A redirect may lead to another host.
            request.add_unredirected_header("Authorization", self._authorization)
        with urllib.request.urlopen(request, timeout=SECONDS_MAX) as answer:
            content = answer.read(_ANSWER_BYTES_MAX)
            return answer.headers.get("Docker-Content-Digest") or "", json.loads(content)

    def _answer_challenge(self, challenge: str) -> str:
        """Return the header `Authorization` for a registry's challenge.

        A challenge `Bearer` names a token service, which is asked for a token, with the login if
        there is one. Return "" for other challenges without a login. Raise the errors of `read`.
        """
        kind = challenge.partition(" ")[0].lower()
        if kind == "basic":
            return self._basic()
        fields = dict(_PARAMETER.findall(challenge))
        realm = fields.pop("realm", "")
        if kind != "bearer" or not realm.startswith(("https://", "http://127.0.0.1:")):
            return ""
        query = urllib.parse.urlencode({k: fields[k] for k in ("service", "scope") if k in fields})
        request = urllib.request.Request(f"{realm}?{query}")
        if basic := self._basic():
            request.add_unredirected_header("Authorization", basic)
        with urllib.request.urlopen(request, timeout=SECONDS_MAX) as answer:
            issued = json.loads(answer.read(_ANSWER_BYTES_MAX))
        return f"Bearer {issued.get('token') or issued['access_token']}"

    def _basic(self) -> str:
        if not self._login:
            return ""
        words = f"{self._login.get('username', '')}:{self._login.get('password', '')}"
        return f"Basic {base64.b64encode(words.encode()).decode()}"


def _split_name(name: str) -> tuple[str, str]:
    """Return the repository, and the digest or else the tag of an image's name without a host."""
    repository, _, digest = name.partition("@")
    before, colon, tag = repository.rpartition(":")
    if colon:
        repository = before
    return repository, digest or (tag if colon else "latest")


def _digest_for_platform(manifests: list[dict[str, Any]]) -> str:
    """Return the digest of the manifest for Linux on x86-64. Raise ValueError without one."""
    for manifest in manifests:
        platform = manifest.get("platform") or {}
        if {name: platform.get(name) for name in _PLATFORM} == _PLATFORM:
            return str(manifest["digest"])
    raise ValueError("no manifest for linux/amd64")
