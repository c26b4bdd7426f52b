"""Manifests of checkpoints, parsed once: the list of a checkpoint's files with sizes and digests.

A trial wrote them, so nothing is trusted. A manifest is known by its digest, and what was parsed
of one is good for every later question about it.
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

# Files of the manifests that are kept in memory, of some 500 bytes each.
KEPT_FILES_MAX = 5 * CHECKPOINT_FILES_MAX

_SIZE_MAX = 2**53
_SHA256 = re.compile(r"[0-9a-f]{64}")


class ManifestInvalid(ValueError):
    """A manifest is not what was reported, breaks a limit, or cannot be read."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file that a manifest lists; `path` is relative to the checkpoint."""

    path: str
    size: int
    sha256: str


Files = tuple[StoredFile, ...]


class ManifestCache:
    """The manifests looked at last, by their digests; may be used by several threads."""

    def __init__(self, files_max: int = KEPT_FILES_MAX) -> None:
        self._lock = Lock()
        self._files_by_digest: BoundedCache[str, Files] = BoundedCache(files_max)

    def load_files(self, digest: str, read: Callable[[int], bytes]) -> Files:
        """The files of the manifest with this digest, by path; `read` reads at most so many bytes
        of it, and is called unless it is known.

        Raises:
            ManifestInvalid: see there.
        """
        with self._lock:
            files = self._files_by_digest.find(digest)
        if files is not None:
            return files
        content = read(MANIFEST_BYTES_MAX + 1)
        # One at a time: several who ask for one manifest must not parse it several times.
        with self._lock:
            files = self._files_by_digest.find(digest)
            if files is None:
                files = parse_manifest(content, digest)
                # One without a file counts too.
                self._files_by_digest.keep(digest, files, len(files) + 1)
        return files


def parse_manifest(content: bytes, digest: str) -> Files:
    """Parse a manifest that was reported with this digest; its files by path.

    Raises:
        ManifestInvalid: see there.
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
    """The id of the cluster whose trial wrote a manifest; "" where none can be read."""
    if len(content) > MANIFEST_BYTES_MAX:
        return ""
    try:
        cluster = json.loads(content)["cluster_id"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return cluster if isinstance(cluster, str) else ""


def _parse_entry(name: str, entry: dict[str, Any]) -> StoredFile:
    check_name(name)
    size, digest = entry["size"], entry["sha256"]
    if type(size) is not int or not 0 <= size <= _SIZE_MAX or not _SHA256.fullmatch(digest):
        raise ValueError(f"{name} has no size and digest")
    return StoredFile(name, size, digest)
