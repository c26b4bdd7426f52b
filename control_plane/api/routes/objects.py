"""Signed requests on objects, for a store that has no signatures of its own."""

import hashlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect

from control_plane.api.archives import MODEL_CODE
from control_plane.api.checkpoint_files import CHECKPOINT_FILES, checkpoint_file
from control_plane.api.errors import ApiError, Code, invalid
from control_plane.api.guarded import Granted, guarded_router, signed
from control_plane.api.services import Given
from control_plane.api.signing import Grant
from control_plane.api.stored import stored
from control_plane.objects.store import ObjectConflict, ObjectStore
from detcloud.archive import ArchiveInvalid, inspect

_BLOCK_BYTES = 256 * 1024

router = guarded_router("objects")


@router.put("/objects/{key:path}", status_code=204)
@signed
async def put_object(request: Request, granted: Granted, services: Given) -> Response:
    """Takes exactly the content that was signed; sending it twice is no error.

    It is checked in a temporary file and appears under its key only when nothing is wrong with it.
    """
    with tempfile.TemporaryDirectory(prefix="detcloud-put-") as folder:
        path = Path(folder) / "content"
        await _receive(request, granted, path)
        await run_in_threadpool(_accept, path, granted, services.objects)
    return Response(status_code=204)


@router.get("/objects/{key:path}", response_class=StreamingResponse)
@signed
def get_object(granted: Granted, services: Given) -> StreamingResponse:
    if granted.key.namespace == CHECKPOINT_FILES:
        return checkpoint_file(services, granted.key)
    return stored(services.objects, granted.key, "application/octet-stream")


async def _receive(request: Request, granted: Grant, path: Path) -> None:
    """Writes the body to `path`; the guard has bounded it by the signed size."""
    digest = hashlib.sha256()
    size = 0
    with path.open("wb") as file:
        try:
            async for block in request.stream():
                digest.update(block)
                size += len(block)
                file.write(block)
        except ClientDisconnect:
            raise invalid("", f"the connection ended after {size} bytes") from None
    if size != granted.size:
        raise invalid("", f"the body has {size} bytes, {granted.size} were signed")
    if digest.hexdigest() != granted.sha256:
        raise invalid("", "the body's SHA-256 is not the one that was signed; send it again")


def _accept(path: Path, granted: Grant, objects: ObjectStore) -> None:
    if granted.key.namespace == MODEL_CODE:
        try:
            inspect(path)
        except ArchiveInvalid as error:
            raise invalid(error.name, error.reason) from None
    try:
        is_new = objects.put(granted.key, _blocks(path), if_absent=True)
    except ObjectConflict as error:
        raise ApiError(Code.CONFLICT, str(error)) from None
    if not is_new and not _is_same(granted, objects):
        raise ApiError(Code.CONFLICT, f"object {granted.key} exists with another content")


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            yield block


def _is_same(granted: Grant, objects: ObjectStore) -> bool:
    if granted.key.name == granted.sha256:
        return True
    digest = hashlib.sha256()
    for block in objects.get(granted.key):
        digest.update(block)
    return digest.hexdigest() == granted.sha256
