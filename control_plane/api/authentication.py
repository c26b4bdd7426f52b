"""The bearer token of a request, and the principal that it stands for."""

from control_plane.access.principals import Principal
from control_plane.access.tokens import TokenStore, token_digest
from control_plane.errors import Code, RequestError

_TOKEN_CHARACTERS_MAX = 256


def authenticate(tokens: TokenStore, authorization: str | None) -> Principal:
    """Return the holder of the bearer token in an Authorization header. May block.

    Raises:
        RequestError: unauthenticated, in the same words whether the token is unknown, expired or
            revoked.
    """
    principal = tokens.find_principal(token_digest(bearer_token(authorization)))
    if principal is None:
        text = "the token is not known here, has expired or was revoked"
        raise RequestError(Code.UNAUTHENTICATED, text)
    return principal


def bearer_token(authorization: str | None) -> str:
    """The token in an Authorization header. Raises RequestError: unauthenticated."""
    scheme, _, token = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not 0 < len(token) <= _TOKEN_CHARACTERS_MAX:
        raise RequestError(Code.UNAUTHENTICATED, "send a token: `Authorization: Bearer TOKEN`")
    return token
