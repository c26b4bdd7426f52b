"""The token of a request, in a header or as the halves of a browser's session, and its holder."""

from fastapi import Request

from control_plane.access.principals import Principal
from control_plane.access.tokens import TokenStore, join_halves, token_digest
from control_plane.api.page_origins import is_cross_origin
from control_plane.api.session_cookie import read_cookie
from control_plane.errors import Code, RequestError

SESSION_KEY_HEADER = "X-Session-Key"
"""The half of a session that the page keeps. No other site's page can send such a header, so that a
session does nothing for one, reads included.
"""

_TOKEN_CHARACTERS_MAX = 256


def authenticate(tokens: TokenStore, token: str) -> Principal:
    """Return the holder of a request's token. May block.

    Raises:
        RequestError: unauthenticated, in the same words whether the token is unknown, expired or
            revoked.
    """
    principal = tokens.find_principal(token_digest(token))
    if principal is None:
        text = "the token is unknown, has expired or was revoked"
        raise RequestError(Code.UNAUTHENTICATED, text)
    return principal


def request_token(request: Request, cluster_id: str) -> str:
    """The token of a request: of its Authorization header, else its session's. Raises
    RequestError: unauthenticated.
    """
    headers = request.headers.getlist("authorization")
    key = request.headers.get(SESSION_KEY_HEADER)
    if key is not None and not headers:
        return session_token(request, cluster_id)
    # With two headers, a proxy before us may have checked the other one.
    return bearer_token(headers[0] if len(headers) == 1 else None)


def session_token(request: Request, cluster_id: str) -> str:
    """The token of a request's session. Raises RequestError: unauthenticated, without both halves
    of one, or with them from a page of another origin.
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
    """The token in an Authorization header. Raises RequestError: unauthenticated."""
    scheme, _, token = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not 0 < len(token) <= _TOKEN_CHARACTERS_MAX:
        raise RequestError(
            Code.UNAUTHENTICATED, "no token was sent; send `Authorization: Bearer TOKEN`"
        )
    return token
