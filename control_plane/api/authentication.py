"""Authentication of requests: by the token in a header, or by a browser session."""

from fastapi import Request

from control_plane.access.principals import Principal
from control_plane.access.tokens import TokenStore, join_halves, token_digest
from control_plane.api.page_origins import is_cross_origin
from control_plane.api.session_cookie import read_cookie
from control_plane.errors import Code, RequestError

SESSION_KEY_HEADER = "X-Session-Key"
"""The header with the half of a session that the web page keeps; a cookie is the other half.

Pages of other sites cannot send this header. A session therefore authorizes no request of another
site, reads included.
"""

_TOKEN_CHARACTERS_MAX = 256


def authenticate(tokens: TokenStore, token: str) -> Principal:
    """Return the principal of a token. May block.

    Raises:
        RequestError: unauthenticated, if the token is unknown, expired or revoked. The message is
            the same in all three cases.
    """
    principal = tokens.find_principal(token_digest(token))
    if principal is None:
        text = "the token is unknown, has expired or was revoked"
        raise RequestError(Code.UNAUTHENTICATED, text)
    return principal


def request_token(request: Request, cluster_id: str) -> str:
    """Return the token of a request, without checking that the token is valid.

    A request with SESSION_KEY_HEADER and without an Authorization header has the token of a
    session, as `session_token` returns. Other requests have the token in the Authorization header.

    Args:
        request: the request.
        cluster_id: the cluster's id, on which the name of the session cookie depends.

    Raises:
        RequestError: unauthenticated, as `session_token` or `bearer_token`, and also for a request
            with several Authorization headers.
    """
    headers = request.headers.getlist("authorization")
    key = request.headers.get(SESSION_KEY_HEADER)
    if key is not None and not headers:
        return session_token(request, cluster_id)
    # A proxy may have checked only one of two Authorization headers, so that neither is accepted.
    return bearer_token(headers[0] if len(headers) == 1 else None)


def session_token(request: Request, cluster_id: str) -> str:
    """Return the token of a request's browser session, joined from the cookie and the header.

    `join_halves` joins the two halves. The token is not looked up, so that the session may have
    ended. The name of the cookie depends on `cluster_id`.

    Raises:
        RequestError: unauthenticated, if the cookie or the header is missing, if the two have 256
            characters or more together, or if the request comes from a page of another origin.
            Allowed other origins are refused as well.
    """
    if is_cross_origin(request):
        text = "a session is of the cluster's own page; a page elsewhere sends a token"
        raise RequestError(Code.UNAUTHENTICATED, text)
    cookie, key = read_cookie(request, cluster_id), request.headers.get(SESSION_KEY_HEADER)
    if not cookie or not key or len(cookie) + len(key) >= _TOKEN_CHARACTERS_MAX:
        raise RequestError(
            Code.UNAUTHENTICATED, "not signed in: the request belongs to no session; sign in first"
        )
    return join_halves(cookie, key)


def bearer_token(authorization: str | None) -> str:
    """Return the token in the value of an Authorization header, `Bearer TOKEN`.

    Raises:
        RequestError: unauthenticated, if the value is None or has another form, or if the token
            has more than 256 characters.
    """
    scheme, _, token = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not 0 < len(token) <= _TOKEN_CHARACTERS_MAX:
        raise RequestError(
            Code.UNAUTHENTICATED, "no token was sent; send `Authorization: Bearer TOKEN`"
        )
    return token
