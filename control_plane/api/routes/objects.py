"""Routes of objects for signed requests, for a store that cannot sign requests itself."""

import tempfile
from pathlib import Path

from anyio import to_thread
from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from control_plane.api.dependencies import ServicesParameter
from control_plane.api.received_files import receive_file
from control_plane.api.responses import download, object_download
from control_plane.api.route_guards import GrantParameter, guarded_router, require_signature
from control_plane.api.stored_objects import archive_checks, check_and_store
from control_plane.errors import invalid
from control_plane.objects.signing import Grant
from control_plane.objects.store import MODEL_CODE_NAMESPACE
from control_plane.queries.checkpoint_files import CHECKPOINT_FILES, open_checkpoint_file
from control_plane.queries.event_files import EVENT_FILES, open_event_file

router = guarded_router("objects")


@router.put("/objects/{key:path}", status_code=204)
@require_signature
async def put_object(
    request: Request, grant: GrantParameter, services: ServicesParameter
) -> Response:
    """Store the signed content, which the body contains, as an object.

    The content is checked in a temporary file before the object appears. Sending the content again
    is not an error. Errors: `invalid` if the body is shorter than signed or has another SHA-256, or
    if an archive of model code breaks a rule. `too_large` if the body is longer than signed.
    `conflict` if the object exists with other content. `unavailable` if the body arrives too slowly
    or incompletely.
    """
    with tempfile.TemporaryDirectory(prefix="detcloud-put-") as folder:
        path = Path(folder) / "content"
        await _receive(request, grant, path)
        is_checked = grant.key.namespace == MODEL_CODE_NAMESPACE
        await to_thread.run_sync(
            check_and_store,
            path,
            grant.key,
            grant.sha256 or "",
            services.objects,
            limiter=archive_checks.limiter() if is_checked else None,
        )
    return Response(status_code=204)


@router.get("/objects/{key:path}", response_class=StreamingResponse)
@require_signature
def get_object(grant: GrantParameter, services: ServicesParameter) -> StreamingResponse:
    if grant.key.namespace in (CHECKPOINT_FILES, EVENT_FILES):
        opens = open_event_file if grant.key.namespace == EVENT_FILES else open_checkpoint_file
        file = opens(services, grant.key)
        return download(file.blocks, file.size, "application/octet-stream")
    return object_download(services.objects, grant.key, "application/octet-stream")


async def _receive(request: Request, grant: Grant, path: Path) -> None:
    """Write the body of a request to `path`; check the size and the SHA-256 that `grant` permits.

    Raises:
        RequestError: invalid, if the size or the SHA-256 differs. The file remains.
        BodyError: too_large or unavailable, as `receive_file`.
    """
    digest, size = await receive_file(request, path)
    if size != grant.size:
        raise invalid("", f"the body has {size} bytes, but {grant.size} were signed")
    if digest != grant.sha256:
        raise invalid("", "the body's SHA-256 differs from the one signed; send it again")
