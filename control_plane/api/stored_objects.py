"""Storage of received files as objects, after a check of the content."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from control_plane.api.loop_limiter import LoopLimiter
from control_plane.errors import Code, RequestError, invalid
from control_plane.objects.store import (
    MODEL_CODE_NAMESPACE,
    ObjectConflict,
    ObjectKey,
    ObjectStore,
)
from detcloud.shared.archive import inspect
from detcloud.shared.archive_limits import ArchiveInvalid

_BLOCK_BYTES = 256 * 1024

archive_checks = LoopLimiter("archive checks", 1)
"""The limit of archive checks: a single check at a time, apart from the threads of other requests.

A check of a maliciously built archive takes seconds. Other requests do not wait meanwhile.
"""


def check_and_store(path: Path, key: ObjectKey, sha256: str, objects: ObjectStore) -> None:
    """Store a local file as the object `key`, after checking an archive of model code.

    Storing the same content again changes nothing and is not an error.

    Args:
        path: the file.
        key: the key. Files in the namespace of model code must be valid archives.
        sha256: the SHA-256 of the file in hexadecimal, which is not checked here.
        objects: the object store.

    Raises:
        RequestError: invalid, if an archive of model code breaks a rule; conflict, if the object
            exists with other content or the store cannot write the key.
    """
    if key.namespace == MODEL_CODE_NAMESPACE:
        try:
            inspect(path)
        except ArchiveInvalid as error:
            raise invalid(error.name, error.reason) from None
    try:
        is_new = objects.put(key, _blocks(path), if_absent=True)
    except ObjectConflict as error:
        raise RequestError(Code.CONFLICT, str(error)) from None
    if not is_new and not _has_same_content(key, sha256, objects):
        raise RequestError(Code.CONFLICT, f"object {key} exists with another content")


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            yield block


def _has_same_content(key: ObjectKey, sha256: str, objects: ObjectStore) -> bool:
    if key.name == sha256:
        return True
    digest = hashlib.sha256()
    for block in objects.get(key):
        digest.update(block)
    return digest.hexdigest() == sha256
