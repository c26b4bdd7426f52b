"""Manifests: bounded before they are parsed, and parsed once."""

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


def test_the_files_are_sorted_by_path() -> None:
    assert paths(manifest_of("b/c", "a", "b/a")) == ["a", "b/a", "b/c"]


def test_as_many_files_as_there_may_be_are_parsed_and_one_more_is_refused() -> None:
    names = [f"f{n}" for n in range(CHECKPOINT_FILES_MAX)]
    assert len(paths(manifest_of(*names))) == CHECKPOINT_FILES_MAX
    with pytest.raises(ManifestInvalid, match="lists 10001 files, the limit is 10000"):
        paths(manifest_of(*names, "one-more"))


def test_a_manifest_that_is_too_large_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_what_is_no_manifest_is_refused(content: bytes) -> None:
    with pytest.raises(ManifestInvalid, match="cannot read its manifest"):
        paths(content)


def test_a_manifest_is_read_and_parsed_once() -> None:
    content = manifest_of("a")
    digest = sha256(content).hexdigest()
    asked: list[int] = []

    def read(bytes_max: int) -> bytes:
        asked.append(bytes_max)
        return content

    cache = ManifestCache()
    assert cache.load_files(digest, read) is cache.load_files(digest, read)
    assert asked == [MANIFEST_BYTES_MAX + 1]


def test_one_of_another_digest_is_refused_and_not_kept() -> None:
    cache = ManifestCache()
    for _ in range(2):
        with pytest.raises(ManifestInvalid, match="its manifest was modified"):
            cache.load_files("0" * 64, lambda _: manifest_of("a"))


def test_what_was_not_looked_at_for_long_is_let_go() -> None:
    cache = ManifestCache(files_max=6)
    contents = [manifest_of(f"{n}", "x") for n in range(3)]
    digests = [sha256(content).hexdigest() for content in contents]
    read: list[int] = []

    def load(n: int) -> None:
        def read_content(_: int) -> bytes:
            read.append(n)
            return contents[n]

        cache.load_files(digests[n], read_content)

    # Each counts 3, so that two are kept: 0 is used again, and 1 makes room for 2.
    for n in (0, 1, 0, 2, 0, 1):
        load(n)
    assert read == [0, 1, 2, 1]
