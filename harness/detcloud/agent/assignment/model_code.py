"""Model code: archives that are downloaded, verified, cached and unpacked for every trial.

The cache stores archives instead of unpacked trees, because each trial may change its own tree.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from detcloud.shared.files import delete_tree, sha256_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import BinaryIO

ARCHIVES_KEPT = 20


class CodeUnavailable(Exception):
    """The model code has an unexpected digest, or its archive is refused."""


@dataclass(frozen=True, slots=True)
class CodeReference:
    """A reference to an archive of model code."""

    sha256: str
    size: int
    """The archive's size in bytes, 0 if the cluster does not name it."""
    path: str
    """The path of the archive in the cluster's API."""

    @classmethod
    def parse(cls, fields: dict[str, Any]) -> CodeReference:
        """Parse the `code` fields of a cluster's assignment.

        Raise CodeUnavailable if the digest is no SHA-256 in lower-case hexadecimal digits.
        """
        digest, path = str(fields.get("sha256")), str(fields.get("path"))
        if not re.fullmatch(r"[0-9a-f]{64}", digest):
            raise CodeUnavailable(
                f"the cluster identified model code by {digest!r}, which is not a SHA-256"
            )
        return cls(digest, int(fields.get("size") or 0), path)


class CodeCache:
    """A cache of archives in a directory, which keeps the 20 most recently used archives.

    `download` writes the content of a path in the cluster's API to a file and returns its size.
    """

    def __init__(self, directory: Path, download: Callable[[str, BinaryIO], int]) -> None:
        self._directory = directory
        self._download = download
        self._lock = threading.Lock()

    def unpack(self, code: CodeReference, destination: Path) -> None:
        """Unpack the archive into `destination`, which must be missing or empty.

        Download the archive if the cache lacks it or its cached copy is damaged. Then delete the
        least recently used archives above the limit. Calls in several threads run one at a time.

        Raises:
            CodeUnavailable: the downloaded digest differs, or the archive breaks a rule.
            FileExistsError: `destination` is not empty.
            OSError: a file cannot be written. Exceptions of the download are passed on, too.
        """
        # Imported here to keep idle agents small (docs/benchmarks.md, `cluster`: idle).
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
            digest = sha256_of(part)
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
    """Whether the cached archive exists and has the digest. If so, mark it as used now.

    False if the file cannot be read.
    """
    try:
        if sha256_of(archive) != digest:
            return False
        os.utime(archive)
    except OSError:
        return False
    return True
