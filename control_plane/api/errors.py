"""Errors as HTTP answers: the status of each code, the body, and what other exceptions become."""

import errno
import logging
import os
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route

from control_plane.errors import Code, Detail, RequestError
from control_plane.queries.answer import Answer
from control_plane.state.table import Unavailable
from control_plane.text_forms import form_words
from detcloud.shared.bucket_errors import BucketError

log = logging.getLogger(__name__)

STATUS_BY_CODE: Mapping[Code, int] = {
    Code.UNAUTHENTICATED: 401,
    Code.FORBIDDEN: 403,
    Code.NOT_FOUND: 404,
    Code.METHOD_NOT_ALLOWED: 405,
    Code.CONFLICT: 409,
    Code.TOO_LARGE: 413,
    Code.INVALID: 422,
    Code.RATE_LIMITED: 429,
    Code.INTERNAL: 500,
    Code.UNAVAILABLE: 503,
}

_DISK_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
# The framework's phrases, and this API's in their place.
_PHRASES = (
    ("Input should be", "must be"),
    ("Input should", "must"),
    ("String should", "must"),
    ("List should", "must"),
    ("Field required", "is required"),
    ("Extra inputs are not permitted", "is not a known field"),
)


class DetailAnswer(Answer):
    """One thing that is wrong, as it is answered."""

    path: str
    message: str
    line: int | None = None
    hint: str | None = None


class ErrorFields(Answer):
    """The code of an error, its message, and each thing that is wrong."""

    code: Code
    message: str
    details: list[DetailAnswer]


class ErrorAnswer(Answer):
    """The body of every answer that is no success."""

    error: ErrorFields


class BodyError(HTTPException):
    """A RequestError raised while a body is read.

    An HTTPException, since FastAPI answers every other exception there as a body it cannot parse.
    """

    def __init__(self, error: RequestError) -> None:
        super().__init__(STATUS_BY_CODE[error.code], error.message)
        self.error = error


def error_response(error: RequestError, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """The HTTP answer to a request that ended with `error`."""
    details = [
        {name: value for name, value in vars(detail).items() if value is not None}
        for detail in error.details
    ]
    content = {"code": error.code.value, "message": error.message, "details": details}
    if error.code is Code.UNAUTHENTICATED:
        headers = {"WWW-Authenticate": "Bearer", **(headers or {})}
    return JSONResponse({"error": content}, STATUS_BY_CODE[error.code], headers)


def install_handlers(app: FastAPI) -> None:
    """Make `app` answer every error it knows in the form of the contract."""
    app.add_exception_handler(HTTPException, _answer_http_exception)
    app.add_exception_handler(RequestValidationError, _answer_validation_error)
    app.add_exception_handler(RequestError, _answer_request_error)
    app.add_exception_handler(Unavailable, answer_unavailable_table)
    app.add_exception_handler(OSError, _answer_os_error)


async def _answer_request_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestError)
    return error_response(error)


async def _answer_http_exception(request: Request, error: Exception) -> JSONResponse:
    """Answer what the framework raises: an unknown route or method, a body it cannot read."""
    assert isinstance(error, HTTPException)
    if isinstance(error, BodyError):
        return error_response(error.error)
    route = f"{request.method} {request.url.path}"
    if error.status_code == 404:
        return error_response(RequestError(Code.NOT_FOUND, f"there is no route {route}"))
    if error.status_code == 405:
        allowed = _allowed_methods(request)
        text = f"{route} is not supported; this path accepts {allowed}"
        return error_response(RequestError(Code.METHOD_NOT_ALLOWED, text), {"Allow": allowed})
    text = "cannot read the request body; send JSON in UTF-8"
    return error_response(RequestError(Code.INVALID, text))


async def _answer_validation_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    details = [_fault_detail(fault) for fault in error.errors()]
    listed = "; ".join(f"{d.path}: {d.message}" if d.path else d.message for d in details)
    text = f"the request is not valid: {listed}"
    return error_response(RequestError(Code.INVALID, text, details))


async def answer_unavailable_table(request: Request, error: Exception) -> JSONResponse:
    """Answer a fault of the state table as one to try again."""
    log.warning("the state table is not available: %s", error)
    text = f"the state table is unavailable now: {error}"
    return error_response(RequestError(Code.UNAVAILABLE, text))


async def _answer_os_error(request: Request, error: Exception) -> JSONResponse:
    """Answer a fault of the disk or of a bucket as one to try again; anything else is ours."""
    assert isinstance(error, OSError)
    if isinstance(error, BucketError):
        log.warning("a bucket failed: %s", error)
        text = f"a bucket is unavailable now: {error}"
        return error_response(RequestError(Code.UNAVAILABLE, text))
    if error.errno not in _DISK_FAULTS:
        raise error
    log.warning("the disk failed: %s", error)
    text = f"the cluster cannot write to its disk now: {os.strerror(error.errno)}"
    return error_response(RequestError(Code.UNAVAILABLE, text))


def _allowed_methods(request: Request) -> str:
    """The methods of every route with the request's path; the framework knows those of one."""
    scope = {**request.scope, "method": ""}
    methods = set[str]()
    for route in request.app.routes:
        if isinstance(route, Route) and route.matches(scope)[0] is not Match.NONE:
            methods |= route.methods or set()
    return ", ".join(sorted(methods))


def _fault_detail(fault: Mapping[str, Any]) -> Detail:
    """A fault that the framework found in a request. The value itself is never repeated: it may be
    a secret.
    """
    # The first element of a location says where the value was sent; the rest is its path.
    place, *rest = fault["loc"]
    if fault["type"] == "json_invalid":
        return Detail("", f"the body is not JSON at character {rest[0]}: {fault['ctx']['error']}")
    path = ".".join(str(part) for part in rest)
    message = str(fault["msg"])
    if fault["type"] == "string_pattern_mismatch":
        message = f"must be {form_words(fault['ctx']['pattern'])}"
    for theirs, ours in _PHRASES:
        message = message.replace(theirs, ours)
    return Detail(path or ("" if place == "body" else str(place)), message)
