from __future__ import annotations

import hashlib
from pathlib import Path
from typing import BinaryIO

import pytest

from detcloud.agent.assignment.model_code import (
    ARCHIVES_KEPT,
    CodeCache,
    CodeReference,
    CodeUnavailable,
)
from tests.integration.agent_cluster import tar


class Downloads:
    """Download function over archives by path; `count` is the number of downloads."""

    def __init__(self, archives: dict[str, bytes]) -> None:
        self.archives = archives
        self.count = 0

    def __call__(self, path: str, file: BinaryIO) -> int:
        self.count += 1
        return file.write(self.archives[path])


def test_model_code_is_fetched_once_and_copies_are_separate(tmp_path: Path) -> None:
    archive = tar({"model.py": "x = 1\n"})
    code = CodeReference(hashlib.sha256(archive).hexdigest(), len(archive), "/code")
    downloads = Downloads({"/code": archive})
    cache = CodeCache(tmp_path / "cache", downloads)
    for name in ("one", "two"):
        cache.unpack(code, tmp_path / name)
        assert (tmp_path / name / "model.py").read_text() == "x = 1\n"
        (tmp_path / name / "model.py").write_text("changed")
    assert downloads.count == 1
    (tmp_path / f"cache/{code.sha256}.tar.gz").write_bytes(b"tampered with")
    cache.unpack(code, tmp_path / "three")
    assert downloads.count == 2


def test_code_with_a_wrong_digest_is_refused_and_not_cached(tmp_path: Path) -> None:
    cache = CodeCache(tmp_path / "cache", Downloads({"/code": b"other"}))
    with pytest.raises(CodeUnavailable, match="digest"):
        cache.unpack(CodeReference("0" * 64, 5, "/code"), tmp_path / "one")
    assert list((tmp_path / "cache").iterdir()) == []
    with pytest.raises(CodeUnavailable, match="SHA-256"):
        CodeReference.parse({"sha256": "../../etc", "path": "/"})


def test_cache_keeps_the_most_recently_used_archives(tmp_path: Path) -> None:
    archives = [tar({"n": str(n)}) for n in range(ARCHIVES_KEPT + 2)]
    digests = [hashlib.sha256(archive).hexdigest() for archive in archives]
    cache = CodeCache(tmp_path / "cache", Downloads(dict(zip(digests, archives, strict=True))))
    for n, digest in enumerate(digests):
        cache.unpack(CodeReference(digest, 0, digest), tmp_path / str(n))
    kept = {path.name.split(".")[0] for path in (tmp_path / "cache").iterdir()}
    assert kept == set(digests[2:])
