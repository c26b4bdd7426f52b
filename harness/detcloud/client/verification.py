"""Verification of stored checkpoints: each file is read, and only the digest is kept."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from typing import Any

from detcloud.client.download import OnProgress, RenewAddresses, fresh_addresses
from detcloud.client.records import CheckpointFile, FileFinding
from detcloud.shared.http import ApiError, Transport

MISSING_OR_DENIED = (
    "missing or not allowed: the store answered 403, as S3 does for a file that is not there where "
    "the cluster's credentials may not list the bucket"
)

_NO_SUCH_FILE = (404, 410)
_FORBIDDEN = 403


def verify_files(
    transport: Transport,
    files: Sequence[CheckpointFile],
    on_progress: OnProgress,
    renew_addresses: RenewAddresses,
) -> list[FileFinding]:
    """Read every file, compare the content with the record, and return a finding per file.

    The state of a finding is OK, DAMAGED for another size or digest, MISSING for status 404 or 410,
    or DENIED. A store's answer 403 becomes DENIED, because S3 answers 403 for missing files if the
    caller may not list the bucket. The verification continues after each finding.

    Args:
        on_progress: called with the bytes read and the total bytes.
        renew_addresses: returns the files with new URLs, when the URLs are about to expire.

    Raises:
        DetcloudError: the store does not answer or fails, or the cluster refuses a file whose URL
            leads to the cluster.
    """
    total = sum(file["size"] for file in files)
    done = 0
    findings = []
    for file, url in fresh_addresses(files, renew_addresses):
        digest = _DigestWriter(done, total, on_progress)
        problem = _find_problem(transport, url, file, digest)
        state = "OK" if not problem else "DAMAGED" if digest.was_served else "MISSING"
        if problem == MISSING_OR_DENIED:
            state = "DENIED"
        findings.append(FileFinding(path=file["path"], state=state, problem=problem))
        done += file["size"]
    return findings


def _find_problem(
    transport: Transport, url: str, file: CheckpointFile, digest: _DigestWriter
) -> str:
    """Read a file and return the difference from the record, or "" without a difference.

    A missing file, or 403 from a store, is also returned as text. `digest.was_served` becomes True
    if the file was read. Raises ApiError for other refusals and Unreachable without an answer.
    """
    try:
        transport.download(url, digest)
    except ApiError as error:
        if error.status in _NO_SUCH_FILE:
            return "the store has no such file"
        if error.status == _FORBIDDEN and not _is_own(transport, url):
            return MISSING_OR_DENIED
        raise
    digest.was_served = True
    if digest.tell() != file["size"]:
        return f"{digest.tell()} bytes, recorded were {file['size']}"
    if digest.sha256() != file["sha256"]:
        return f"SHA-256 {digest.sha256()}, recorded was {file['sha256']}"
    return ""


def _is_own(transport: Transport, url: str) -> bool:
    """Return whether the URL leads to the cluster and not to a store."""
    return url.startswith(("/", f"{transport.base_url}/"))


class _DigestWriter(io.BytesIO):
    """A writable file that keeps only the SHA-256 and the size. Truncating restarts both.

    Each write calls `on_progress` with `before` plus the size so far, and with `total`.
    """

    def __init__(self, before: int, total: int, on_progress: OnProgress) -> None:
        super().__init__()
        self.was_served = False
        self._before = before
        self._total = total
        self._on_progress = on_progress
        self._hash = hashlib.sha256()
        self._size = 0

    def sha256(self) -> str:
        return self._hash.hexdigest()

    def tell(self) -> int:
        return self._size

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        if (offset, whence) != (0, io.SEEK_SET):
            raise io.UnsupportedOperation("a digest starts at 0")
        return 0

    def truncate(self, size: int | None = None, /) -> int:
        self._hash, self._size = hashlib.sha256(), 0
        return 0

    def write(self, data: Any, /) -> int:
        self._hash.update(data)
        self._size += len(data)
        self._on_progress(self._before + self._size, self._total)
        return len(data)
