"""Determined's users, which are names with tokens in detcloud."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from detcloud.client import Client
from detcloud.compatibility.client_errors import NotFoundException
from detcloud.compatibility.handles import missing_name_error

_TOKENS = "use `detcloud token create USER` and `detcloud token revoke ID`; a user is a name"
INSTEAD_OF_USER = {
    "rename": _TOKENS,
    "activate": _TOKENS,
    "deactivate": _TOKENS,
    "change_display_name": _TOKENS,
    "change_password": _TOKENS,
    "link_with_agent": "use `detcloud up` or start the agent as the user whose rights trials need",
}


@dataclass(frozen=True)
class User:
    """A user: a name with tokens. The name is also the id.

    `agent_uid` to `agent_group` are always None. Methods without a counterpart raise AttributeError
    with the replacement.
    """

    username: str
    admin: bool
    active: bool = True
    remote: bool = False
    agent_uid: None = None
    agent_gid: None = None
    agent_user: None = None
    agent_group: None = None

    @property
    def user_id(self) -> str:
        return self.username

    @property
    def display_name(self) -> str:
        return self.username

    def reload(self) -> None:
        """Do nothing: a name does not change."""

    def __getattr__(self, name: str) -> Any:
        raise missing_name_error("User", name, INSTEAD_OF_USER)


def current_user(client: Client) -> User:
    """Return the user of the client's token."""
    identity = client.whoami()
    return User(identity["user"], identity["role"] == "admin")


def read_users(client: Client) -> list[User]:
    """Return the users of all tokens that the client may see, by name.

    An admin sees all tokens, a user only that user's tokens. A user is `active` if a token is not
    revoked, and `admin` if a token has this role.
    """
    own = current_user(client)
    users = {own.username: own}
    for token in client.tokens():
        if token.role == "join":
            continue
        known = users.get(token.user)
        is_admin = token.role == "admin" or (known is not None and known.admin)
        is_active = not token.revoked or (known is not None and known.active)
        users[token.user] = User(token.user, is_admin, is_active)
    return [users[name] for name in sorted(users)]


def find_user(client: Client, name: str) -> User:
    """Return the user with this name.

    Raises:
        NotFoundException: the client sees no token of this user.
    """
    known = read_users(client)
    for user in known:
        if user.username == name:
            return user
    names = ", ".join(user.username for user in known)
    raise NotFoundException(404, "not_found", f"no token of a user {name!r:.140}; known: {names}")
