"""Routes of objects, by signed requests, for a store that has no signatures of its own."""

import hashlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from anyio import to_thread
from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from control_plane.api.dependencies import ServicesParameter
from control_plane.api.loop_limiter import LoopLimiter
from control_plane.api.received_files import receive_file
from control_plane.api.responses import download, object_download
from control_plane.api.route_guards import GrantParameter, guarded_router, require_signature
from control_plane.errors import Code, RequestError, invalid
from control_plane.objects.signing import Grant
from control_plane.objects.store import MODEL_CODE_NAMESPACE, ObjectConflict, ObjectStore
from control_plane.queries.checkpoint_files import CHECKPOINT_FILES, open_checkpoint_file
from detcloud.shared.archive import inspect
from detcloud.shared.archive_limits import ArchiveInvalid

_BLOCK_BYTES = 256 * 1024
# Archives are checked one at a time and beside the threads that answer: a check takes seconds where
# an archive was made to be dear, and no other request waits for it.
_checks = LoopLimiter("archive checks", 1)

router = guarded_router("objects")


@router.put("/objects/{key:path}", status_code=204)
@require_signature
async def put_object(
    request: Request, grant: GrantParameter, services: ServicesParameter
) -> Response:
    """Store exactly the content that was signed; sending it twice is no error.

    It is checked in a temporary file and appears under its key only when nothing is wrong with it.
    """
    with tempfile.TemporaryDirectory(prefix="detcloud-put-") as folder:
        path = Path(folder) / "content"
        await _receive(request, grant, path)
        is_checked = grant.key.namespace == MODEL_CODE_NAMESPACE
        await to_thread.run_sync(
            _check_and_store,
            path,
            grant,
            services.objects,
            limiter=_checks.limiter() if is_checked else None,
        )
    return Response(status_code=204)


@router.get("/objects/{key:path}", response_class=StreamingResponse)
@require_signature
def get_object(grant: GrantParameter, services: ServicesParameter) -> StreamingResponse:
    if grant.key.namespace == CHECKPOINT_FILES:
        file = open_checkpoint_file(services, grant.key)
        return download(file.blocks, file.size, "application/octet-stream")
    return object_download(services.objects, grant.key, "application/octet-stream")


async def _receive(request: Request, grant: Grant, path: Path) -> None:
    """Write the body to `path`, and check that it is the one that was signed."""
    digest, size = await receive_file(request, path)
    if size != grant.size:
        raise invalid("", f"the body has {size} bytes, but {grant.size} were signed")
    if digest != grant.sha256:
        raise invalid("", "the body's SHA-256 differs from the one signed; send it again")


def _check_and_store(path: Path, grant: Grant, objects: ObjectStore) -> None:
    if grant.key.namespace == MODEL_CODE_NAMESPACE:
        try:
            inspect(path)
        except ArchiveInvalid as error:
            raise invalid(error.name, error.reason) from None
    try:
        is_new = objects.put(grant.key, _blocks(path), if_absent=True)
    except ObjectConflict as error:
        raise RequestError(Code.CONFLICT, str(error)) from None
    if not is_new and not _has_same_content(grant, objects):
        raise RequestError(
            Code.CONFLICT, f"object {grant.key} already exists with different content"
        )


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            yield block


def _has_same_content(grant: Grant, objects: ObjectStore) -> bool:
    if grant.key.name == grant.sha256:
        return True
    digest = hashlib.sha256()
    for block in objects.get(grant.key):
        digest.update(block)
    return digest.hexdigest() == grant.sha256
