"""Error answers: the HTTP status of each code, the body, and the handling of all exceptions."""

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

from control_plane.api.original_routes import DETCLOUD_SENTENCE, is_original_route
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
# Phrases of the framework's messages, and the words of this API for each.
_PHRASES = (
    ("Input should be", "must be"),
    ("Input should", "must"),
    ("String should", "must"),
    ("List should", "must"),
    ("Field required", "is required"),
    ("Extra inputs are not permitted", "is not a known field"),
)


class DetailAnswer(Answer):
    """A single problem of a request.

    `path` is the wrong field or parameter, or "" for the whole request. `line` is the line in the
    sent configuration, `column` the character in a sent filter. An unknown `line` or `column` and a
    missing `hint` are left out.
    """

    path: str
    message: str
    line: int | None = None
    hint: str | None = None
    column: int | None = None


class ErrorFields(Answer):
    """An error: the code, the message, and all single problems of the request."""

    code: Code
    message: str
    details: list[DetailAnswer]


class ErrorAnswer(Answer):
    """The body of every answer with an error status."""

    error: ErrorFields


class BodyError(HTTPException):
    """A RequestError that is raised while the body of a request is read.

    The class is an HTTPException, because FastAPI answers all other exceptions during the reading
    as a body that cannot be parsed.
    """

    def __init__(self, error: RequestError) -> None:
        super().__init__(STATUS_BY_CODE[error.code], error.message)
        self.error = error


def error_response(error: RequestError, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return the HTTP answer to a request that failed with `error`.

    The answer gets `headers`, and for the code `unauthenticated` also `WWW-Authenticate`.
    """
    details = [
        {name: value for name, value in vars(detail).items() if value is not None}
        for detail in error.details
    ]
    content = {"code": error.code.value, "message": error.message, "details": details}
    if error.code is Code.UNAUTHENTICATED:
        headers = {"WWW-Authenticate": "Bearer", **(headers or {})}
    return JSONResponse({"error": content}, STATUS_BY_CODE[error.code], headers)


def install_handlers(app: FastAPI) -> None:
    """Add handlers to `app` that convert exceptions to the API's error answers.

    The handlers convert RequestError, the framework's HTTPException and RequestValidationError,
    Unavailable (the state table), and OSError if a disk or a bucket failed. The handler of OSError
    raises an error of any other origin again, without an answer.
    """
    app.add_exception_handler(HTTPException, _answer_http_exception)
    app.add_exception_handler(RequestValidationError, _answer_validation_error)
    app.add_exception_handler(RequestError, _answer_request_error)
    app.add_exception_handler(Unavailable, answer_unavailable_table)
    app.add_exception_handler(OSError, _answer_os_error)


async def _answer_request_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestError)
    return error_response(error)


async def _answer_http_exception(request: Request, error: Exception) -> JSONResponse:
    """Return the answer for an exception that the framework raises before or in place of a handler.

    Return `not_found` for an unknown route, with advice on a route of Determined's. Return
    `method_not_allowed` for a known route with another method, with the allowed methods. Return the
    error inside a BodyError. Return `invalid` otherwise, because the body cannot be read.
    """
    assert isinstance(error, HTTPException)
    if isinstance(error, BodyError):
        return error_response(error.error)
    route = f"{request.method} {request.url.path}"
    if error.status_code == 404:
        is_of_original = is_original_route(request.url.path)
        text = DETCLOUD_SENTENCE if is_of_original else f"there is no route {route}"
        return error_response(RequestError(Code.NOT_FOUND, text))
    if error.status_code == 405:
        allowed = _allowed_methods(request)
        text = f"{route} is not supported; this path accepts {allowed}"
        return error_response(RequestError(Code.METHOD_NOT_ALLOWED, text), {"Allow": allowed})
    text = "cannot read the request body; send JSON in UTF-8"
    return error_response(RequestError(Code.INVALID, text))


async def _answer_validation_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    # A faulty field that a dependency and the handler both read is reported twice.
    details = list(dict.fromkeys(_fault_detail(fault) for fault in error.errors()))
    listed = "; ".join(f"{d.path}: {d.message}" if d.path else d.message for d in details)
    text = f"the request is not valid: {listed}"
    return error_response(RequestError(Code.INVALID, text, details))


async def answer_unavailable_table(request: Request, error: Exception) -> JSONResponse:
    """Log a fault of the state table as a warning, and return the answer `unavailable`.

    The answer's message contains the text of the fault.
    """
    log.warning("the state table is not available: %s", error)
    text = f"the state table is unavailable now: {error}"
    return error_response(RequestError(Code.UNAVAILABLE, text))


async def _answer_os_error(request: Request, error: Exception) -> JSONResponse:
    """Log a fault of a bucket, or a full, failing or read-only disk; return `unavailable`.

    The answer's message contains the text of the fault, but no path of the disk. Raise any other
    error again, because such an error is a bug.
    """
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
    """Return the methods of all routes that match the request's path, sorted and joined by ", ".

    Return "" if no route matches. The framework itself only returns the methods of a single route.
    """
    scope = {**request.scope, "method": ""}
    methods = set[str]()
    for route in request.app.routes:
        if isinstance(route, Route) and route.matches(scope)[0] is not Match.NONE:
            methods |= route.methods or set()
    return ", ".join(sorted(methods))


def _fault_detail(fault: Mapping[str, Any]) -> Detail:
    """Convert a fault that the framework found in a request to a detail with this API's words.

    The detail does not contain the wrong value, because the value may be a secret.
    """
    # A location begins with the part of the request, such as `body`; the value's path follows.
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
