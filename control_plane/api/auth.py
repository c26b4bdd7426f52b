"""Tokens and who holds them."""

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from control_plane.api.errors import ApiError, Code

TOKEN_PREFIX = "dct_"
"""Marks our tokens, so that logs and secret scanners know them."""

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
    """

    user: str
    role: Role
    subject: str = ""


class Tokens(Protocol):
    """Where tokens are kept, by the SHA-256 of each and never themselves."""

    def principal(self, digest: str) -> Principal | None:
        """Whose token has this digest; None when unknown or revoked. May block."""
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
        ApiError: unauthenticated, in the same words whether the token is unknown or revoked.
    """
    scheme, _, token = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not 0 < len(token) <= _TOKEN_CHARACTERS_MAX:
        raise ApiError(Code.UNAUTHENTICATED, "send a token: `Authorization: Bearer TOKEN`")
    principal = tokens.principal(digest_of(token))
    if principal is None:
        raise ApiError(Code.UNAUTHENTICATED, "the token is not known here, or was revoked")
    return principal


def mint_token() -> str:
    """A new token with 256 bits of chance."""
    return TOKEN_PREFIX + secrets.token_urlsafe(32)


def digest_of(token: str) -> str:
    """What is stored of a token: its SHA-256 in hexadecimal."""
    return hashlib.sha256(token.encode()).hexdigest()
