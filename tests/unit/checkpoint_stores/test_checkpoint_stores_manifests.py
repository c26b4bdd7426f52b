"""Manifests are bounded before parsing and parsed once."""

import json
from hashlib import sha256

import pytest

from control_plane.checkpoint_stores import manifests
from control_plane.checkpoint_stores.manifests import ManifestCache, ManifestInvalid
from detcloud.shared.checkpoint_limits import CHECKPOINT_FILES_MAX, MANIFEST_BYTES_MAX

DIGEST = "a" * 64


def manifest_of(*names: str) -> bytes:
    files = {name: {"size": 1, "sha256": DIGEST} for name in names}
    return json.dumps({"version": 1, "files": files, "metadata": {}}).encode()


def paths(content: bytes) -> list[str]:
    files = manifests.parse_manifest(content, sha256(content).hexdigest())
    return [file.path for file in files]


def test_files_of_a_manifest_are_sorted_by_path() -> None:
    assert paths(manifest_of("b/c", "a", "b/a")) == ["a", "b/a", "b/c"]


def test_manifest_lists_at_most_10000_files() -> None:
    names = [f"f{n}" for n in range(CHECKPOINT_FILES_MAX)]
    assert len(paths(manifest_of(*names))) == CHECKPOINT_FILES_MAX
    with pytest.raises(ManifestInvalid, match="lists 10001 files, the limit is 10000"):
        paths(manifest_of(*names, "one-more"))


def test_too_large_manifest_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(manifests, "json")
    content = manifest_of("a") + b" " * MANIFEST_BYTES_MAX
    with pytest.raises(ManifestInvalid, match=f"has more than {MANIFEST_BYTES_MAX} bytes"):
        paths(content)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"files": []}',
        b'{"files": {"a": 1}}',
        b'{"files": {"../a": {"size": 1, "sha256": "' + DIGEST.encode() + b'"}}}',
        b'{"files": {"a": {"size": true, "sha256": "' + DIGEST.encode() + b'"}}}',
        b'{"files": {"a": {"size": -1, "sha256": "' + DIGEST.encode() + b'"}}}',
        b'{"files": {"a": {"size": 1, "sha256": "b"}}}',
        b"[" * 100_000,
    ],
)
def test_rejects_malformed_manifests(content: bytes) -> None:
    with pytest.raises(ManifestInvalid, match="cannot read its manifest"):
        paths(content)


def test_manifest_is_read_and_parsed_once() -> None:
    content = manifest_of("a")
    digest = sha256(content).hexdigest()
    sizes: list[int] = []

    def read(bytes_max: int) -> bytes:
        sizes.append(bytes_max)
        return content

    cache = ManifestCache()
    assert cache.load_files(digest, read) is cache.load_files(digest, read)
    assert sizes == [MANIFEST_BYTES_MAX + 1]


def test_manifest_with_a_wrong_digest_is_refused_and_not_cached() -> None:
    cache = ManifestCache()
    for _ in range(2):
        with pytest.raises(ManifestInvalid, match="its manifest was modified"):
            cache.load_files("0" * 64, lambda _: manifest_of("a"))


def test_least_recently_used_manifest_is_evicted() -> None:
    cache = ManifestCache(files_max=6)
    contents = [manifest_of(f"{n}", "x") for n in range(3)]
    digests = [sha256(content).hexdigest() for content in contents]
    read: list[int] = []

    def load(n: int) -> None:
        def read_content(_: int) -> bytes:
            read.append(n)
            return contents[n]

        cache.load_files(digests[n], read_content)

    # Each manifest counts as 3 files, so that two fit: 0 is used again, and 2 evicts 1.
    for n in (0, 1, 0, 2, 0, 1):
        load(n)
    assert read == [0, 1, 2, 1]
