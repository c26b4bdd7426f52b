"""The cookie with a browser's half of a session."""

import hashlib

from fastapi import Request, Response

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


def cookie_name(request: Request, cluster_id: str) -> str:
    """The name of the cookie. Browsers share cookies among all ports of a machine, so that each
    cluster has one of its own; away from this machine it is one that only an answer over TLS for
    just this host can set.
    """
    mark = hashlib.sha256(cluster_id.encode()).hexdigest()[:12]
    return f"detcloud-{mark}" if _is_loopback(request) else f"__Host-detcloud-{mark}"


def read_cookie(request: Request, cluster_id: str) -> str | None:
    """The value of the cookie, None where the request has none."""
    return request.cookies.get(cookie_name(request, cluster_id))


def set_cookie(
    response: Response, request: Request, cluster_id: str, value: str, seconds: int
) -> None:
    """Make the browser keep `value` for `seconds`; for 0 it forgets it."""
    response.set_cookie(
        cookie_name(request, cluster_id),
        value,
        max_age=seconds,
        path="/",
        secure=not _is_loopback(request),
        httponly=True,
        samesite="strict",
    )


def _is_loopback(request: Request) -> bool:
    return (request.url.hostname or "") in _LOOPBACK
