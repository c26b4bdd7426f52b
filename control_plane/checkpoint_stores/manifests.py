"""Manifests of checkpoints: the list of a checkpoint's files with sizes and digests.

Trials write manifests, so the parser trusts nothing. A cache stores parsed manifests by the SHA-256
of the content, so that each is parsed once.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from threading import Lock
from typing import Any

from control_plane.bounded_cache import BoundedCache
from detcloud.shared.archive_limits import ArchiveInvalid
from detcloud.shared.archive_names import check_name
from detcloud.shared.checkpoint_limits import CHECKPOINT_FILES_MAX, MANIFEST_BYTES_MAX

# The limit for the files of all cached manifests; a file takes about 500 bytes of memory.
KEPT_FILES_MAX = 5 * CHECKPOINT_FILES_MAX

_SIZE_MAX = 2**53
_SHA256 = re.compile(r"[0-9a-f]{64}")


class ManifestInvalid(ValueError):
    """A manifest has another digest than reported, exceeds a limit, or cannot be parsed."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file in the list of a manifest."""

    path: str
    """The path relative to the checkpoint's folder."""
    size: int
    """The size in bytes."""
    sha256: str
    """The SHA-256 in hexadecimal."""


Files = tuple[StoredFile, ...]


class ManifestCache:
    """A cache of parsed manifests by SHA-256, which evicts the least recently used manifests.

    Several threads may share the cache.
    """

    def __init__(self, files_max: int = KEPT_FILES_MAX) -> None:
        """`files_max` limits the sum of the files of all cached manifests."""
        self._lock = Lock()
        self._files_by_digest: BoundedCache[str, Files] = BoundedCache(files_max)

    def load_files(self, digest: str, read: Callable[[int], bytes]) -> Files:
        """Return the files of a manifest, sorted by path, from the cache if possible.

        Otherwise read and parse the manifest, and cache the result.

        Args:
            digest: the reported SHA-256 of the manifest in hexadecimal.
            read: reads at most the given number of bytes of the manifest; called without the lock.

        Raises:
            ManifestInvalid: the manifest has another digest, exceeds a limit, or cannot be parsed.
            Exception: every error of `read`.
        """
        with self._lock:
            files = self._files_by_digest.find(digest)
        if files is not None:
            return files
        content = read(MANIFEST_BYTES_MAX + 1)
        # The lock is held while parsing, so that concurrent requests parse a manifest only once.
        with self._lock:
            files = self._files_by_digest.find(digest)
            if files is None:
                files = parse_manifest(content, digest)
                # A manifest without files has a weight as well.
                self._files_by_digest.keep(digest, files, len(files) + 1)
        return files


def parse_manifest(content: bytes, digest: str) -> Files:
    """Parse a manifest; return the listed files, sorted by path.

    Args:
        content: the bytes of the manifest.
        digest: the reported SHA-256 in hexadecimal.

    Raises:
        ManifestInvalid: the content has more than MANIFEST_BYTES_MAX bytes or another digest, lists
            more than CHECKPOINT_FILES_MAX files, or has an invalid name, size or digest of a file.
    """
    if len(content) > MANIFEST_BYTES_MAX:
        raise ManifestInvalid(f"its manifest has more than {MANIFEST_BYTES_MAX} bytes")
    if sha256(content).hexdigest() != digest:
        raise ManifestInvalid("its manifest was modified")
    try:
        entries = json.loads(content)["files"].items()
        if len(entries) > CHECKPOINT_FILES_MAX:
            text = f"its manifest lists {len(entries)} files, the limit is {CHECKPOINT_FILES_MAX}"
            raise ManifestInvalid(text)
        files = [_parse_entry(name, entry) for name, entry in entries]
    except ManifestInvalid:
        raise
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
        ArchiveInvalid,
    ) as error:
        raise ManifestInvalid(f"cannot read its manifest: {error}") from None
    return tuple(sorted(files, key=lambda file: file.path))


def manifest_cluster(content: bytes) -> str:
    """Return the id of the cluster whose trial wrote a manifest.

    Return "" if the manifest is too large, cannot be parsed, or has no such id.
    """
    if len(content) > MANIFEST_BYTES_MAX:
        return ""
    try:
        cluster = json.loads(content)["cluster_id"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return cluster if isinstance(cluster, str) else ""


def _parse_entry(name: str, entry: dict[str, Any]) -> StoredFile:
    """Parse a file's entry in a manifest.

    Raises ArchiveInvalid for an invalid name, and ValueError, KeyError or TypeError for an invalid
    size or digest.
    """
    check_name(name)
    size, digest = entry["size"], entry["sha256"]
    if type(size) is not int or not 0 <= size <= _SIZE_MAX or not _SHA256.fullmatch(digest):
        raise ValueError(f"{name} has no size and digest")
    return StoredFile(name, size, digest)
