"""The roles of the API, and principals, which are the callers of requests."""

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """The role of a caller, which decides which routes the caller may use."""

    ADMIN = "admin"
    USER = "user"
    AGENT = "agent"
    """An agent, for the routes of that agent."""
    JOIN = "join"
    """The holder of a join token, which may enrol agents."""
    METRICS = "metrics"
    """A monitoring system, which may only read the metrics of the cluster."""


USER_ROLES = (Role.USER, Role.ADMIN)


@dataclass(frozen=True)
class Principal:
    """The caller of a request, as a token identifies the caller."""

    user: str
    """The user, or a name such as `agent a1`. Recorded with every change."""
    role: Role
    subject: str = ""
    """The agent id for an agent, the resource pool for a join token, and "" for users."""
    expires_ms: int | None = None
    """The epoch ms at which the token expires. None for a token that does not expire."""
    agent: str = ""
    """The only agent id that a join token may enrol. "" allows any agent. A join token that is good
    for one agent has the agent's id from the first enrolment on.
    """
    makers: tuple[str, ...] = ()
    """The digests of the revocable tokens that led to this token: each one created the next, and
    the last one created this token. The token is invalid if any of these tokens was revoked.
    """
    stored_role: str = ""
    """The role in a stored row, if `role` is a stand-in for the role. "" outside stored rows."""
    token_id: int = 0
    """The id of the record of a join token that is good for one agent. 0 for all other tokens."""
    installation: str = ""
    """The installation of `agent`, for the credential of a machine and for a used join token. ""
    for all other tokens.
    """


def stand_in_of(role: Role) -> tuple[Role, str]:
    """Return the values of `role` and `stored_role` in the stored row of a token with a role.

    Older releases cannot decode METRICS, and would fail to list any tokens. Such a token is stored
    as the token of an agent without an id. Older releases refuse this agent on each agent's route,
    except that a download of model code succeeds with the SHA-256 of the archive.
    """
    return (Role.AGENT, role.value) if role is Role.METRICS else (role, "")


def role_of_row(role: Role, stored_role: str) -> Role:
    """Return the role of a token from the values of the stored row.

    Return the stand-in for a role of a newer release, so that lists of tokens do not fail.
    """
    return Role.METRICS if stored_role == Role.METRICS else role
