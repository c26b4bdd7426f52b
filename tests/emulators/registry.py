"""A container registry on this machine that requires a login and serves a single image."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.emulators.http_server import AnsweringHandler, serve_requests

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG = "application/vnd.docker.container.image.v1+json"
LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"


@dataclass
class Registry:
    """A registry with the image `name`, made of a tar archive, for callers with the user's
    password.
    """

    layer: bytes
    variables: list[str]
    user: str
    password: str
    name: str = "team/trial:1"
    address: str = ""
    blobs: dict[str, bytes] = field(default_factory=dict)
    manifest: bytes = b""
    pulls: int = 0

    def __post_init__(self) -> None:
        packed = gzip.compress(self.layer)
        config = json.dumps(
            {
                "architecture": "amd64",
                "os": "linux",
                "config": {"Env": self.variables},
                "rootfs": {"type": "layers", "diff_ids": [digest_of(self.layer)]},
                "history": [{"created_by": "the tests"}],
            }
        ).encode()
        self.blobs = {digest_of(blob): blob for blob in (config, packed)}
        self.manifest = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": _descriptor(CONFIG, config),
                "layers": [_descriptor(LAYER, packed)],
            }
        ).encode()

    @property
    def image(self) -> str:
        """The image's name for an engine."""
        return f"{self.address}/{self.name}"

    @property
    def digest(self) -> str:
        """The digest by which the image is known here."""
        return digest_of(self.manifest)

    def answer(self, path: str, authorization: str | None) -> tuple[int, str, bytes]:
        """Return status, type and content of the answer to a request."""
        login = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        if authorization != f"Basic {login}":
            return 401, "application/json", _error("UNAUTHORIZED", "authentication required")
        repository, _, tag = self.name.partition(":")
        if path == "/v2/":
            return 200, "application/json", b"{}"
        if path in (f"/v2/{repository}/manifests/{ref}" for ref in (tag, self.digest)):
            self.pulls += 1
            return 200, MANIFEST, self.manifest
        blob = self.blobs.get(path.removeprefix(f"/v2/{repository}/blobs/"))
        if blob is not None:
            return 200, "application/octet-stream", blob
        return 404, "application/json", _error("MANIFEST_UNKNOWN", "manifest unknown")


@contextmanager
def serving_registry(registry: Registry) -> Iterator[Registry]:
    """Serve the registry on a free port until the block ends."""

    class Handler(AnsweringHandler):
        def do_GET(self) -> None:
            status, kind, content = registry.answer(self.path, self.headers["Authorization"])
            headers = {"Content-Type": kind}
            if status == 401:
                headers["WWW-Authenticate"] = 'Basic realm="tests"'
            if kind == MANIFEST:
                headers["Docker-Content-Digest"] = registry.digest
            self.answer(status, content, headers)

        do_HEAD = do_GET

    with serve_requests(Handler) as registry.address:
        yield registry


def digest_of(content: bytes) -> str:
    """Return the digest of content in the registries' format."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _descriptor(kind: str, content: bytes) -> dict[str, Any]:
    return {"mediaType": kind, "size": len(content), "digest": digest_of(content)}


def _error(code: str, message: str) -> bytes:
    return json.dumps({"errors": [{"code": code, "message": message}]}).encode()
