"""The user of the machine that a trial runs as, from the field `agent_user` of the spec.

A trial without the field runs as the default user of the runtime.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    from collections.abc import Mapping

    from detcloud.agent.allocation.directory import AllocationDirectory

FIELD = "agent_user"
ID_MAX = 2**32 - 2
"""The highest id of a user or group. The kernel uses the next number for "no change"."""


class AgentUserUnavailable(Exception):
    """The machine cannot run the trial as the requested user. The trial may start elsewhere."""


@dataclass(frozen=True, slots=True)
class AgentUser:
    """The user and the group that a trial runs as."""

    uid: int
    gid: int
    user: str = ""
    """The name of the user. "" if the cluster names none."""
    group: str = ""
    """The name of the group. "" if the cluster names none."""
    refusal: str = ""
    """Why the cluster does not allow this user. "" if the user is allowed."""

    @property
    def owner(self) -> tuple[int, int]:
        """The ids of the user and the group."""
        return self.uid, self.gid

    @property
    def label(self) -> str:
        """The user for messages, for example `uid 1001 (ada)`."""
        return f"uid {self.uid} ({self.user})" if self.user else f"uid {self.uid}"


@dataclass(frozen=True, slots=True)
class MachineUser:
    """An agent user with the facts that the machine's user database adds."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    """The ids of all groups of the user, `gid` included."""
    name: str
    """The user's name, for the variables USER and LOGNAME."""

    @property
    def label(self) -> str:
        """The user for the trial's record, for example `ada (1001:1001)`."""
        return f"{self.name} ({self.uid}:{self.gid})"


def read_agent_user(spec: Mapping[str, Any]) -> AgentUser | None:
    """Return the user of a trial's spec, or None if the spec names no user.

    Raise ValueError if the field has another form, so that the trial never runs as another user.
    """
    fields = spec.get(FIELD)
    if fields is None:
        return None
    if not isinstance(fields, dict):
        raise ValueError(f"{FIELD} is no object")
    uid, gid = fields.get("uid"), fields.get("gid")
    if not (_is_id(uid) and _is_id(gid)):
        raise ValueError(f"{FIELD} has the ids {uid!r} and {gid!r}")
    user, group, refusal = (str(fields.get(name) or "") for name in ("user", "group", "refusal"))
    return AgentUser(uid, gid, user, group, refusal)


def _is_id(number: object) -> TypeGuard[int]:
    return type(number) is int and 0 <= number <= ID_MAX


def check_agent_user(user: AgentUser) -> None:
    """Raise AgentUserUnavailable if this agent's process cannot start trials as `user`.

    An agent that runs as root can start trials as any user, and any agent as its own user.
    """
    if user.refusal:
        raise AgentUserUnavailable(user.refusal)
    if os.geteuid() != 0 and user.owner != (os.geteuid(), os.getegid()):
        raise AgentUserUnavailable(
            f"the trial must run as {user.label}, but this agent runs as uid {os.geteuid()} and "
            "cannot start processes of other users; run the agent as root"
        )


def only_user() -> str:
    """Return the only user that this agent's process can start trials as, as `UID:GID`.

    Return "" for an agent that runs as root and so can start trials as any user.
    """
    return "" if os.geteuid() == 0 else f"{os.geteuid()}:{os.getegid()}"


def set_agent_user(directory: AllocationDirectory, spec: Mapping[str, Any]) -> None:
    """Make the spec's user the owner of the trial's files. Do nothing without a user.

    Raise ValueError for a malformed user, AgentUserUnavailable for a user that this agent cannot
    start trials as, and OSError if the record of the owner cannot be written.
    """
    user = read_agent_user(spec)
    if user is not None:
        check_agent_user(user)
        directory.set_owner(user.owner)


def find_machine_user(user: AgentUser) -> MachineUser:
    """Look up the user in the machine's user database, for example /etc/passwd or LDAP.

    The numbers decide. A user without an entry has no further groups. Raise AgentUserUnavailable if
    the entry of the number has another name than the cluster names, because the files would then
    belong to another person.
    """
    # Imported here to keep idle agents small.
    import pwd

    try:
        name = pwd.getpwuid(user.uid).pw_name
    except KeyError:
        _check_name_is_free(user)
        return MachineUser(user.uid, user.gid, (user.gid,), user.user or str(user.uid))
    if user.user and user.user != name:
        raise AgentUserUnavailable(
            f"the trial must run as {user.label}, but uid {user.uid} is {name} on this machine; "
            "give the user the same number on all machines, or correct the agent user"
        )
    groups = os.getgrouplist(name, user.gid)
    return MachineUser(user.uid, user.gid, tuple(groups), name)


def _check_name_is_free(user: AgentUser) -> None:
    """Raise AgentUserUnavailable if the machine knows the user's name with another number."""
    import pwd

    try:
        number = pwd.getpwnam(user.user).pw_uid if user.user else user.uid
    except KeyError:
        return
    if number != user.uid:
        raise AgentUserUnavailable(
            f"the trial must run as {user.label}, but {user.user} has the number {number} on this "
            "machine; give the user the same number on all machines, or correct the agent user"
        )
