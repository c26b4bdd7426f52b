"""Answers whose body is an object of the store."""

from fastapi.responses import StreamingResponse

from control_plane.api.errors import ApiError, Code
from control_plane.objects.store import Key, ObjectMissing, ObjectStore


def stored(objects: ObjectStore, key: Key, media_type: str) -> StreamingResponse:
    """The object as a download, never shown in place, since its content is a stranger's.

    Raises:
        ApiError: not_found.
    """
    size = objects.size(key)
    try:
        content = objects.get(key, length=size)
    except ObjectMissing:
        raise ApiError(Code.NOT_FOUND, f"there is no object {key}") from None
    headers = {"Content-Disposition": "attachment"}
    if size is not None:
        headers["Content-Length"] = str(size)
    return StreamingResponse(content, media_type=media_type, headers=headers)
