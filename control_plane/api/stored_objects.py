"""Contents of requests that become objects, once nothing is wrong with them."""

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
"""Archives are checked one at a time and beside the threads that answer: a check takes seconds
where an archive was made to be dear, and no other request waits for it.
"""


def check_and_store(path: Path, key: ObjectKey, sha256: str, objects: ObjectStore) -> None:
    """Store the file at `path`, whose digest is `sha256`, under its key; model code is checked.
    Storing the same twice is no error.

    Raises:
        RequestError: invalid, for an archive with a fault; conflict, where the key has another
            content.
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
