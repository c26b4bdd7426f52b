"""The exception that every layer raises for a request that cannot be carried out."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Code(StrEnum):
    """The error codes of the API, as documented in docs/api.md."""

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


@dataclass(frozen=True)
class Detail:
    """A single problem of a request."""

    path: str
    """The path of the wrong field, such as `searcher.name`."""
    message: str
    """The problem."""
    line: int | None = None
    """The line in the configuration file, from 1. None if the line is unknown."""
    hint: str | None = None
    """The advice to the user, or None."""
    column: int | None = None
    """The character of a text, such as a filter, from 1. None if the character is unknown."""


class RequestError(Exception):
    """A request that cannot be carried out.

    Args:
        code: the kind of error.
        message: the reason, for the user.
        details: all single problems of the request.
    """

    def __init__(self, code: Code, message: str, details: Sequence[Detail] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = tuple(details)


def invalid(path: str, message: str, hint: str | None = None) -> RequestError:
    """Return the error for a single wrong field or parameter.

    Args:
        path: the path of the field in the request, or the name of the parameter. "" for the whole
            request. The error's message begins with a path that is not "".
        message: the problem, without the path.
        hint: the advice to the user, or None.
    """
    where = f"{path}: " if path else ""
    return RequestError(Code.INVALID, f"{where}{message}", [Detail(path, message, hint=hint)])
