"""The session cookie, which contains half of a browser session's token."""

import hashlib

from fastapi import Request, Response

from control_plane.api.prefix import request_prefix

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


def cookie_name(request: Request, cluster_id: str) -> str:
    """Return the name of the cluster's session cookie for the host of a request.

    Browsers share cookies among all ports of a host, so that the name depends on the cluster's id.
    Except for a plain cookie, the name has the prefix `__Host-`: only an answer over TLS from
    exactly this host can set the cookie. Browsers accept this prefix only for the path `/`. Behind
    a proxy with a prefix of paths, the prefix is `__Secure-`, so that other applications of the
    host do not get the cookie.
    """
    mark = hashlib.sha256(cluster_id.encode()).hexdigest()[:12]
    if _is_plain(request):
        return f"detcloud-{mark}"
    return f"{'__Secure-' if request_prefix(request) else '__Host-'}detcloud-{mark}"


def read_cookie(request: Request, cluster_id: str) -> str | None:
    """Return the value of the session cookie. Return None if the request has no such cookie."""
    return request.cookies.get(cookie_name(request, cluster_id))


def set_cookie(
    response: Response, request: Request, cluster_id: str, value: str, seconds: int
) -> None:
    """Add the session cookie to `response`, with a lifetime in seconds.

    0 seconds delete the cookie in the browser. Scripts cannot read the cookie, and browsers send
    the cookie only with requests from pages of the same site. Except for a plain cookie, browsers
    also require TLS.
    """
    response.set_cookie(
        cookie_name(request, cluster_id),
        value,
        max_age=seconds,
        path=f"{request_prefix(request)}/",
        secure=not _is_plain(request),
        httponly=True,
        samesite="strict",
    )


def _is_plain(request: Request) -> bool:
    """Return whether the request's cookie does not require TLS.

    True for a loopback host. Also True for a request without TLS, if the server's operator allowed
    HTTP without TLS for other machines.
    """
    if (request.url.hostname or "") in _LOOPBACK:
        return True
    allows_plain = getattr(request.app.state, "allows_plain_cookies", False)
    return allows_plain and request.url.scheme == "http"
