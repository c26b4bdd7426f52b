"""Descriptions of images, asked from a registry on this machine."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from infra.registry_reader import RefusedImage, StoredImage, UnreadImage, read_image
from tests.emulators.http_server import AnsweringHandler, serve_requests
from tests.emulators.registry import MANIFEST, Registry, digest_of, serving_registry

LOGIN = {"username": "pull", "password": "canary-5f"}


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with serving_registry(Registry(b"layer" * 999, [], "pull", "canary-5f")) as served:
        yield served


def test_returns_digest_and_compressed_size_of_an_image(registry: Registry) -> None:
    # The size of the blobs, a configuration and a compressed layer.
    size = sum(len(blob) for blob in registry.blobs.values())
    for name in (registry.image, f"{registry.image.rpartition(':')[0]}@{registry.digest}"):
        assert read_image(name, LOGIN) == StoredImage(registry.digest, size)


def test_login_is_refused(registry: Registry) -> None:
    assert read_image(registry.image) == RefusedImage(401)
    assert read_image(registry.image, {**LOGIN, "password": "wrong"}) == RefusedImage(401)


def test_missing_image_is_refused(registry: Registry) -> None:
    assert read_image(f"{registry.address}/team/other:1", LOGIN) == RefusedImage(404)


def test_registry_without_an_answer_is_unread() -> None:
    answer = read_image("127.0.0.1:9/team/trial:1", LOGIN)
    assert isinstance(answer, UnreadImage)
    assert answer.why.startswith("127.0.0.1:9 does not answer: ")


@contextmanager
def token_registry(
    manifests: dict[str, bytes], status: int = 200
) -> Iterator[tuple[str, list[str]]]:
    """Serve a registry like Docker Hub, whose token service issues tokens without a login.

    Yield the address, and the received headers `Authorization`.
    """
    received: list[str] = []

    class Handler(AnsweringHandler):
        def do_GET(self) -> None:
            given = self.headers["Authorization"] or ""
            received.append(f"{self.path.split('?')[0]} {given}".strip())
            if self.path.startswith("/token?service=hub&scope="):
                self.answer(200, b'{"token": "t"}', {})
            elif given != "Bearer t":
                realm = f'Bearer realm="http://{address}/token",service="hub",scope="a:b:pull"'
                self.answer(401, b"{}", {"WWW-Authenticate": realm})
            else:
                content = manifests[self.path.rpartition("/")[2]]
                self.answer(status, content, {"Docker-Content-Digest": digest_of(content)})

    with serve_requests(Handler) as address:
        yield address, received


def manifest_of(size: int) -> bytes:
    parts = {"config": {"size": 1}, "layers": [{"size": size - 1}]}
    return json.dumps({"schemaVersion": 2, "mediaType": MANIFEST, **parts}).encode()


def test_token_service_is_asked_without_a_login() -> None:
    with token_registry({"2": manifest_of(70)}) as (address, received):
        found = read_image(f"{address}/team/trial:2")
    assert found == StoredImage(digest_of(manifest_of(70)), 70)
    path = "/v2/team/trial/manifests/2"
    assert received == [path, "/token", f"{path} Bearer t"]


def test_token_service_receives_the_login() -> None:
    with token_registry({"2": manifest_of(70)}) as (address, received):
        read_image(f"{address}/team/trial:2", LOGIN)
    assert received[1] == f"/token Basic {base64.b64encode(b'pull:canary-5f').decode()}"


def test_size_is_that_of_the_image_for_x86() -> None:
    entries = [
        {"digest": "sha256:arm", "platform": {"os": "linux", "architecture": "arm64"}},
        {"digest": "sha256:x86", "platform": {"os": "linux", "architecture": "amd64"}},
    ]
    index = json.dumps({"manifests": entries}).encode()
    manifests = {"2": index, "sha256:arm": manifest_of(50), "sha256:x86": manifest_of(70)}
    with token_registry(manifests) as (address, _):
        assert read_image(f"{address}/team/trial:2") == StoredImage(digest_of(index), 70)


@pytest.mark.parametrize("content", [b"<html>", b"[]", b'{"layers": 1}', b'{"manifests": []}'])
def test_answer_without_a_description_is_unread(content: bytes) -> None:
    with token_registry({"2": content}) as (address, _):
        answer = read_image(f"{address}/team/trial:2")
    assert isinstance(answer, UnreadImage)
    assert "without a description of the image's layers" in answer.why


def test_busy_registry_is_unread() -> None:
    with token_registry({"2": b"{}"}, status=429) as (address, _):
        answer = read_image(f"{address}/team/trial:2")
    assert isinstance(answer, UnreadImage)
    assert answer.why.endswith("answered with status 429")
