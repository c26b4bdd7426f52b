"""The headers for the collector, which a deployment stores as an object."""

import hashlib
import json
from pathlib import Path

import pytest

from control_plane.objects.directory import DirectoryObjectStore
from control_plane.objects.signing import HmacUrlSigner
from control_plane.objects.store import ObjectKey
from lambdas.collector_headers import (
    DIGEST_VARIABLE,
    OBJECT,
    CollectorHeaders,
    HeadersUnavailable,
)

TEXT = json.dumps({"authorization": "Basic canary-79"}).encode()
DIGEST = hashlib.sha256(TEXT).hexdigest()


@pytest.fixture
def store(tmp_path: Path) -> DirectoryObjectStore:
    return DirectoryObjectStore(tmp_path, HmacUrlSigner(b"s" * 32))


def put(store: DirectoryObjectStore, content: bytes) -> None:
    store.put(ObjectKey(OBJECT), content)


def test_cluster_without_headers_reads_no_object(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DIGEST_VARIABLE, raising=False)

    def refuse() -> DirectoryObjectStore:
        raise AssertionError

    assert CollectorHeaders(refuse).read() == {}


def test_deployed_headers_are_read_once(
    store: DirectoryObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DIGEST_VARIABLE, DIGEST)
    put(store, TEXT)
    headers = CollectorHeaders(lambda: store)
    assert headers.read() == {"authorization": "Basic canary-79"}
    put(store, b"{}")
    assert headers.read() == {"authorization": "Basic canary-79"}


def test_headers_of_another_deployment_are_not_used(
    store: DirectoryObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DIGEST_VARIABLE, DIGEST)
    headers = CollectorHeaders(lambda: store)
    with pytest.raises(HeadersUnavailable, match="cannot be read"):
        headers.read()
    put(store, b'{"authorization": "canary-old"}')
    with pytest.raises(HeadersUnavailable) as refused:
        headers.read()
    assert "canary" not in str(refused.value)
    put(store, TEXT)
    assert headers.read() == {"authorization": "Basic canary-79"}
