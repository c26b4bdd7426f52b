"""Tokens and who holds them."""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from control_plane.api.errors import ApiError, Code

_TOKEN_CHARACTERS_MAX = 256


class Role(StrEnum):
    ADMIN = "admin"
    USER = "user"
    AGENT = "agent"
    JOIN = "join"


PEOPLE = (Role.USER, Role.ADMIN)


@dataclass(frozen=True)
class Principal:
    """Who calls: `user` is recorded with every mutation.

    `subject` is what the role is bound to: an agent's id, the pool of a join token, "" for people.
    `expires_ms`: when the token ends, None for never. `agent`: the only one that a join token lets
    in, "" for any.
    """

    user: str
    role: Role
    subject: str = ""
    expires_ms: int | None = None
    agent: str = ""


class Tokens(Protocol):
    """Where tokens are kept, by the SHA-256 of each and never themselves."""

    def principal(self, digest: str) -> Principal | None:
        """Whose token has this digest; None when unknown, expired or revoked. May block."""
        ...


class StaticTokens:
    """A fixed set of tokens, by digest."""

    def __init__(self, principals: Mapping[str, Principal]) -> None:
        self._principals = dict(principals)

    def principal(self, digest: str) -> Principal | None:
        found = None
        for known, principal in self._principals.items():
            if hmac.compare_digest(known, digest):
                found = principal
        return found


def authenticate(tokens: Tokens, authorization: str | None) -> Principal:
    """The holder of the bearer token in an Authorization header. May block.

    Raises:
        ApiError: unauthenticated, in the same words whether the token is unknown, expired or
            revoked.
    """
    principal = tokens.principal(digest_of(bearer_of(authorization)))
    if principal is None:
        text = "the token is not known here, has expired or was revoked"
        raise ApiError(Code.UNAUTHENTICATED, text)
    return principal


def bearer_of(authorization: str | None) -> str:
    """The token in an Authorization header. Raises ApiError: unauthenticated."""
    scheme, _, token = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not 0 < len(token) <= _TOKEN_CHARACTERS_MAX:
        raise ApiError(Code.UNAUTHENTICATED, "send a token: `Authorization: Bearer TOKEN`")
    return token


def digest_of(token: str) -> str:
    """What is stored of a token: its SHA-256 in hexadecimal."""
    return hashlib.sha256(token.encode()).hexdigest()
