"""Responses with encoded JSON, with the content of an object, or with a redirect to a store."""

from collections.abc import Generator, Iterator

from fastapi import Response
from fastapi.responses import RedirectResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from control_plane.errors import Code, RequestError
from control_plane.objects.signing import VALIDITY_MS_MAX
from control_plane.objects.store import ObjectKey, ObjectNotFound, ObjectStore
from control_plane.usecases.idempotency import StoredAnswer


def json_response(content: bytes, status: int = 200) -> Response:
    """Return a response with the HTTP status `status` and the JSON text `content`."""
    return Response(content, status, media_type="application/json")


def answer_response(answer: StoredAnswer) -> Response:
    """Return the HTTP response with the status and JSON text of a mutation's answer."""
    return json_response(answer.content, answer.status)


def download_or_redirect(
    objects: ObjectStore, key: ObjectKey, media_type: str, now_ms: int, redirect_status: int = 307
) -> Response:
    """Return an object as a download, or a redirect to the store if clients can reach the store.

    The redirect avoids the size limit that a function host has for answers.

    Args:
        objects: the object store.
        key: the key of the object.
        media_type: the media type of a download. A redirect ignores it.
        now_ms: the current time in epoch ms. The URL of a redirect is valid for VALIDITY_MS_MAX.
        redirect_status: the HTTP status of a redirect. 303 makes the client send a GET, for
            requests with another method.

    Raises:
        RequestError: not_found, if the object does not exist.
    """
    if objects.size(key) is None:
        raise _missing_object_error(key)
    signed = objects.signed_url("GET", key, expires_ms=now_ms + VALIDITY_MS_MAX)
    if signed.url.startswith("/"):
        return object_download(objects, key, media_type)
    # The URL expires soon, and is for this caller only.
    return RedirectResponse(signed.url, redirect_status, {"Cache-Control": "no-store"})


def object_download(objects: ObjectStore, key: ObjectKey, media_type: str) -> StreamingResponse:
    """Return an object as a download with Content-Length, which browsers save and never display.

    Raises:
        RequestError: not_found, if the object does not exist.
    """
    size = objects.size(key)
    try:
        content = objects.get(key, length=size)
    except ObjectNotFound:
        raise _missing_object_error(key) from None
    return download(content, size, media_type)


def download(blocks: Iterator[bytes], size: int | None, media_type: str) -> StreamingResponse:
    """Return blocks of bytes as a download, which browsers save and never display.

    The content may be another user's, and displaying it would be unsafe. After the response,
    `blocks` is closed if it is a generator.

    Args:
        blocks: the content.
        size: the number of bytes for the Content-Length header. None omits the header.
        media_type: the media type of the content.
    """
    headers = {"Content-Disposition": "attachment"}
    if size is not None:
        headers["Content-Length"] = str(size)
    return _Download(blocks, media_type, headers)


class _Download(StreamingResponse):
    """A download that closes the generator of its blocks, even if the client disconnects early.

    An unfinished generator would keep a file open.
    """

    def __init__(self, blocks: Iterator[bytes], media_type: str, headers: dict[str, str]) -> None:
        super().__init__(blocks, media_type=media_type, headers=headers)
        self._blocks = blocks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            if isinstance(self._blocks, Generator):
                self._blocks.close()


def _missing_object_error(key: ObjectKey) -> RequestError:
    return RequestError(Code.NOT_FOUND, f"there is no object {key}")
