"""Responses with JSON that is encoded already, with the content of an object or a file, or with the
URL where its store has it.
"""

from collections.abc import Generator, Iterator

from fastapi import Response
from fastapi.responses import RedirectResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from control_plane.errors import Code, RequestError
from control_plane.objects.signing import VALIDITY_MS_MAX
from control_plane.objects.store import ObjectKey, ObjectNotFound, ObjectStore
from control_plane.usecases.idempotency import StoredAnswer


def json_response(content: bytes, status: int = 200) -> Response:
    """The response with this JSON."""
    return Response(content, status, media_type="application/json")


def answer_response(answer: StoredAnswer) -> Response:
    """The response to a mutation, whether it was carried out now or before."""
    return json_response(answer.content, answer.status)


def download_or_redirect(
    objects: ObjectStore, key: ObjectKey, media_type: str, now_ms: int, redirect_status: int = 307
) -> Response:
    """The object, or a redirect to the store's own host where it has one: answers are limited
    there. A `redirect_status` of 303 is for requests that are no GET, and are one there.

    Raises:
        RequestError: not_found.
    """
    if objects.size(key) is None:
        raise _missing_object_error(key)
    signed = objects.signed_url("GET", key, expires_ms=now_ms + VALIDITY_MS_MAX)
    if signed.url.startswith("/"):
        return object_download(objects, key, media_type)
    # The URL is good for a while only, and for this caller only.
    return RedirectResponse(signed.url, redirect_status, {"Cache-Control": "no-store"})


def object_download(objects: ObjectStore, key: ObjectKey, media_type: str) -> StreamingResponse:
    """The object as a download.

    Raises:
        RequestError: not_found.
    """
    size = objects.size(key)
    try:
        content = objects.get(key, length=size)
    except ObjectNotFound:
        raise _missing_object_error(key) from None
    return download(content, size, media_type)


def download(blocks: Iterator[bytes], size: int | None, media_type: str) -> StreamingResponse:
    """The blocks as a download, never shown in place, since the content is a stranger's."""
    headers = {"Content-Disposition": "attachment"}
    if size is not None:
        headers["Content-Length"] = str(size)
    return _Download(blocks, media_type, headers)


class _Download(StreamingResponse):
    """A download that lets go of what it reads from, whether its answer was taken to the end or
    the caller left: a generator that was left in the middle would keep its file open.
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
