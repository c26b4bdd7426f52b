"""Model code: fetched by digest, verified, cached as archives, unpacked for every trial.

The archive is cached and not the tree, because each trial may change its copy.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from detcloud.shared.files import delete_tree

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import BinaryIO

ARCHIVES_KEPT = 20


class CodeUnavailable(Exception):
    """The model code could not be fetched or is not the expected one."""


@dataclass(frozen=True, slots=True)
class CodeReference:
    """An archive's digest, its size in bytes and where the cluster serves it."""

    sha256: str
    size: int
    path: str

    @classmethod
    def parse(cls, fields: dict[str, Any]) -> CodeReference:
        """The reference in an assignment; CodeUnavailable unless the digest is a SHA-256."""
        digest, path = str(fields.get("sha256")), str(fields.get("path"))
        if not re.fullmatch(r"[0-9a-f]{64}", digest):
            raise CodeUnavailable(
                f"the cluster identified model code by {digest!r}, which is not a SHA-256"
            )
        return cls(digest, int(fields.get("size") or 0), path)


class CodeCache:
    """A cache of archives in one directory, which keeps the 20 used last."""

    def __init__(self, directory: Path, download: Callable[[str, BinaryIO], int]) -> None:
        self._directory = directory
        self._download = download
        self._lock = threading.Lock()

    def unpack(self, code: CodeReference, destination: Path) -> None:
        """Put the tree into `destination`, fetching the archive if need be.

        Raises CodeUnavailable when the digest differs or the archive is refused, and what the
        download raises.
        """
        # An idle agent never needs it (docs/benchmarks.md, `cluster`: idle).
        from detcloud.shared.archive import extract
        from detcloud.shared.archive_limits import ArchiveInvalid

        with self._lock:
            archive = self._fetch_archive(code)
            try:
                extract(archive, destination)
            except ArchiveInvalid as error:
                raise CodeUnavailable(f"the model code was refused: {error}") from error
            self._prune()

    def _fetch_archive(self, code: CodeReference) -> Path:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        archive = self._directory / f"{code.sha256}.tar.gz"
        if _is_intact(archive, code.sha256):
            return archive
        if archive.is_dir():
            delete_tree(archive)
        part = self._directory / f".{code.sha256}.part"
        try:
            with part.open("wb") as file:
                self._download(code.path, file)
            digest = _file_sha256(part)
            if digest != code.sha256:
                raise CodeUnavailable(
                    f"the model code has the digest {digest}, expected {code.sha256}"
                )
            part.replace(archive)
        finally:
            part.unlink(missing_ok=True)
        return archive

    def _prune(self) -> None:
        archives = sorted(
            self._directory.glob("*.tar.gz"), key=lambda path: path.stat().st_mtime_ns
        )
        for archive in archives[:-ARCHIVES_KEPT]:
            with contextlib.suppress(OSError):
                archive.unlink()


def _is_intact(archive: Path, digest: str) -> bool:
    """Whether the cache has the archive; one that cannot be read is fetched again."""
    try:
        if _file_sha256(archive) != digest:
            return False
        os.utime(archive)
    except OSError:
        return False
    return True


def _file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
