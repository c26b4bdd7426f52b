"""Roles, and the principals that have them."""

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    ADMIN = "admin"
    USER = "user"
    AGENT = "agent"
    JOIN = "join"


USER_ROLES = (Role.USER, Role.ADMIN)


@dataclass(frozen=True)
class Principal:
    """The caller of a request: `user` is recorded with every mutation.

    `subject` is what the role is bound to: an agent's id, the pool of a join token, "" for users.
    `expires_ms`: when the token ends, None for never. `agent`: the only one that a join token lets
    in, "" for any. `makers`: the digests of the token that made this one, of the one that made
    that, and so on, as far as they can be revoked: without one of them this token is none either.
    """

    user: str
    role: Role
    subject: str = ""
    expires_ms: int | None = None
    agent: str = ""
    makers: tuple[str, ...] = ()
