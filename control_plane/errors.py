"""The error that every layer raises for a request that cannot be carried out."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


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


@dataclass(frozen=True)
class Detail:
    """One thing that is wrong: where (a path like `searcher.name`), what, and what to do."""

    path: str
    message: str
    line: int | None = None
    hint: str | None = None


class RequestError(Exception):
    """A request that cannot be carried out: why, as its user reads it, and what kind of error."""

    def __init__(self, code: Code, message: str, details: Sequence[Detail] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = tuple(details)


def invalid(path: str, message: str, hint: str | None = None) -> RequestError:
    """The error for one wrong field, named by its path in the request or by its parameter."""
    where = f"{path}: " if path else ""
    return RequestError(Code.INVALID, f"{where}{message}", [Detail(path, message, hint=hint)])
