"""The exceptions of Determined's client, which scripts catch by name."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from detcloud.shared.http import ApiError, Unreachable

Method = TypeVar("Method", bound=Callable[..., Any])

APIException = BadRequestException = ApiError
MasterNotFoundException = Unreachable


class NotFoundException(ApiError):
    """The requested object does not exist."""


class ForbiddenException(ApiError):
    """The token's user may not make this request."""


class UnauthenticatedException(ApiError):
    """The request had no token, or an invalid token."""


_OF_STATUS = {404: NotFoundException, 403: ForbiddenException, 401: UnauthenticatedException}


def raise_by_name(method: Method) -> Method:
    """Decorate a method so that an ApiError with status 401, 403 or 404 has Determined's class."""

    @functools.wraps(method)
    def call(*arguments: Any, **options: Any) -> Any:
        try:
            return method(*arguments, **options)
        except ApiError as error:
            kind = _OF_STATUS.get(error.status)
            if kind is None or isinstance(error, kind):
                raise
            raise kind(error.status, error.code, error.message, error.details) from None

    return cast("Method", call)
