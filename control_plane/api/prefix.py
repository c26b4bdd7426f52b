"""The prefix of the API's paths at a reverse proxy that serves other applications as well."""

from fastapi import Request
from starlette.types import Scope

_KEY = "path_prefix"


def set_prefix(scope: Scope, prefix: str) -> None:
    """Record the prefix that was removed from the path of a request.

    Args:
        scope: the request.
        prefix: a path such as `/detcloud`, without a slash at the end, or "".
    """
    scope.setdefault("state", {})[_KEY] = prefix


def request_prefix(request: Request) -> str:
    """Return the prefix of the paths by which the caller reaches the API, mostly ""."""
    return str(request.scope.get("state", {}).get(_KEY, ""))
