"""Answers with an object of the store, or with the place where that gives it out itself."""

from fastapi import Response
from fastapi.responses import RedirectResponse, StreamingResponse

from control_plane.api.errors import ApiError, Code
from control_plane.api.signing import LIFE_MS_MAX
from control_plane.objects.store import Key, ObjectMissing, ObjectStore


def given_out(objects: ObjectStore, key: Key, media_type: str, now_ms: int) -> Response:
    """The object, from the store's own host where it has one: our answers have a limit there.

    Raises:
        ApiError: not_found.
    """
    if objects.size(key) is None:
        raise _missing(key)
    signed = objects.signed_url("GET", key, expires_ms=now_ms + LIFE_MS_MAX)
    if signed.url.startswith("/"):
        return stored(objects, key, media_type)
    # It is good for a while only, and nobody else's business.
    return RedirectResponse(signed.url, 307, {"Cache-Control": "no-store"})


def stored(objects: ObjectStore, key: Key, media_type: str) -> StreamingResponse:
    """The object as a download, never shown in place, since its content is a stranger's.

    Raises:
        ApiError: not_found.
    """
    size = objects.size(key)
    try:
        content = objects.get(key, length=size)
    except ObjectMissing:
        raise _missing(key) from None
    headers = {"Content-Disposition": "attachment"}
    if size is not None:
        headers["Content-Length"] = str(size)
    return StreamingResponse(content, media_type=media_type, headers=headers)


def _missing(key: Key) -> ApiError:
    return ApiError(Code.NOT_FOUND, f"there is no object {key}")
