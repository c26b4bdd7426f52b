"""Errors as the API answers them: one type, a code with its status, and the mapping of others."""

import errno
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route

from control_plane.actors.step import Refused
from control_plane.api.bodies import Body
from control_plane.state.table import Unavailable
from detcloud.s3 import BucketFailed

log = logging.getLogger(__name__)

_DISK_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)


class Code(StrEnum):
    """The codes of docs/api.md."""

    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    CONFLICT = "conflict"
    TOO_LARGE = "too_large"
    INVALID = "invalid"
    RATE_LIMITED = "rate_limited"
    INTERNAL = "internal"
    UNAVAILABLE = "unavailable"

    @property
    def status(self) -> int:
        return _STATUS[self]


@dataclass(frozen=True)
class Detail:
    """One thing that is wrong: where (a path like `searcher.name`), what, and what to do."""

    path: str
    message: str
    line: int | None = None
    hint: str | None = None


class DetailAnswer(Body):
    """One thing that is wrong, as it is answered."""

    path: str
    message: str
    line: int | None = None
    hint: str | None = None


class ErrorFields(Body):
    """What an error says."""

    code: Code
    message: str
    details: list[DetailAnswer]


class ErrorAnswer(Body):
    """The body of every answer that is no success."""

    error: ErrorFields


class ApiError(HTTPException):
    """Ends a request with a code of the contract.

    An HTTPException, since that is what FastAPI lets through unchanged from every layer.
    """

    def __init__(
        self,
        code: Code,
        message: str,
        details: Sequence[Detail] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        if code is Code.UNAUTHENTICATED:
            headers = {"WWW-Authenticate": "Bearer", **(headers or {})}
        super().__init__(code.status, message, headers)
        self.code = code
        self.message = message
        self.details = tuple(details)

    def response(self) -> JSONResponse:
        details = [
            {name: value for name, value in vars(detail).items() if value is not None}
            for detail in self.details
        ]
        error = {"code": self.code.value, "message": self.message, "details": details}
        return JSONResponse({"error": error}, self.status_code, self.headers)


def invalid(path: str, message: str, hint: str | None = None) -> ApiError:
    """The error for one wrong field, named by its path in the body or by its parameter."""
    where = f"{path}: " if path else ""
    return ApiError(Code.INVALID, f"{where}{message}", [Detail(path, message, hint=hint)])


def install(app: FastAPI) -> None:
    """Makes `app` answer every error it knows in the form of the contract."""
    app.add_exception_handler(HTTPException, _answer_http)
    app.add_exception_handler(RequestValidationError, _answer_validation)
    app.add_exception_handler(Refused, _answer_refused)
    app.add_exception_handler(Unavailable, _answer_unavailable)
    app.add_exception_handler(OSError, _answer_os_error)


async def _answer_http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return (error if isinstance(error, ApiError) else _translated(request, error)).response()


async def _answer_validation(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    details = [_detail(fault) for fault in error.errors()]
    listed = "; ".join(f"{d.path}: {d.message}" if d.path else d.message for d in details)
    return ApiError(Code.INVALID, f"the request is not valid: {listed}", details).response()


async def _answer_refused(request: Request, error: Exception) -> JSONResponse:
    """A command that an actor does not carry out."""
    assert isinstance(error, Refused)
    return ApiError(Code(error.code), str(error)).response()


async def _answer_unavailable(request: Request, error: Exception) -> JSONResponse:
    log.warning("the state table is not available: %s", error)
    return ApiError(Code.UNAVAILABLE, f"the state table cannot be used now: {error}").response()


async def _answer_os_error(request: Request, error: Exception) -> JSONResponse:
    """What is the disk's or a bucket's fault may be tried again; anything else is ours."""
    assert isinstance(error, OSError)
    if isinstance(error, BucketFailed):
        log.warning("a bucket failed: %s", error)
        return ApiError(Code.UNAVAILABLE, f"a bucket cannot be used now: {error}").response()
    if error.errno not in _DISK_FAULTS:
        raise error
    log.warning("the disk failed: %s", error)
    text = f"the cluster's disk cannot be written now: {os.strerror(error.errno)}"
    return ApiError(Code.UNAVAILABLE, text).response()


def _translated(request: Request, error: HTTPException) -> ApiError:
    """What the framework raises itself: an unknown route or method, a body it cannot read."""
    route = f"{request.method} {request.url.path}"
    if error.status_code == 404:
        return ApiError(Code.NOT_FOUND, f"there is no route {route}")
    if error.status_code == 405:
        allowed = _methods(request)
        text = f"there is no route {route}; this path takes {allowed}"
        return ApiError(Code.METHOD_NOT_ALLOWED, text, headers={"Allow": allowed})
    return ApiError(Code.INVALID, "the request's body could not be read; send JSON in UTF-8")


def _methods(request: Request) -> str:
    """The methods of every route with the request's path; the framework knows those of one."""
    scope = {**request.scope, "method": ""}
    found = set[str]()
    for route in request.app.routes:
        if isinstance(route, Route) and route.matches(scope)[0] is not Match.NONE:
            found |= route.methods or set()
    return ", ".join(sorted(found))


def _detail(fault: Mapping[str, Any]) -> Detail:
    """The first element of a location says where the value was sent; the rest is its path.

    The value itself is never repeated: it may be a secret.
    """
    place, *rest = fault["loc"]
    if fault["type"] == "json_invalid":
        return Detail("", f"the body is not JSON at character {rest[0]}: {fault['ctx']['error']}")
    path = ".".join(str(part) for part in rest)
    return Detail(path or ("" if place == "body" else str(place)), _worded(str(fault["msg"])))


def _worded(message: str) -> str:
    """The framework's sentence as this API words its own."""
    for theirs, ours in _WORDS:
        message = message.replace(theirs, ours)
    return message


_WORDS = (
    ("Input should be", "must be"),
    ("Input should", "must"),
    ("String should", "must"),
    ("List should", "must"),
    ("Field required", "is required"),
    ("Extra inputs are not permitted", "is not a known field"),
)
_STATUS = {
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
