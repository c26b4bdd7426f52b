"""Agent users: the users of the machines that the trials of a user or a workspace run as.

The ids of a workspace replace the ids of the experiment's owner, each by itself. A trial has an
agent user only if both ids are known. The user is read at every start of a trial, so that a change
takes effect with the next start.
"""

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import quote

from control_plane.rows import cluster_rows, user_rows
from control_plane.rows.json_codec import JsonCodec
from control_plane.state.table import Key, StateTable

PARTITION = user_rows.AGENT_USER.partition
SPEC_VERSION = 3
"""The version of a spec with an agent user. An older harness refuses the spec, and so does not run
the trial as another user.
"""
_CONFIGURATION = Key(*cluster_rows.CONFIGURATION.only_key)
ROOT_SETTING = "allow_root_agent_users"
ROOT_REFUSED = (
    "the agent user has the id of root; an admin must choose another id, or set "
    f"{ROOT_SETTING}: true in the cluster configuration"
)


class AgentUserKind(StrEnum):
    """The kind of object that an agent user belongs to."""

    USER = "user"
    WORKSPACE = "workspace"


@dataclass(frozen=True)
class AgentUserRecord:
    """The stored row of an agent user."""

    kind: AgentUserKind
    name: str
    """The name of the user of the cluster, or of the workspace."""
    uid: int | None
    """The number of the machines' user. None for a workspace that keeps the user of the owner."""
    gid: int | None
    """The number of the machines' group. None for a workspace that keeps the group of the owner."""
    user: str
    """The name of the machines' user, or ""."""
    group: str
    """The name of the machines' group, or ""."""
    changed_by: str
    """The admin who made the last change."""
    changed_ms: int

    @property
    def is_root(self) -> bool:
        """Whether the user or the group is root."""
        return 0 in (self.uid, self.gid)


CODEC = JsonCodec(user_rows.AGENT_USER, AgentUserRecord, {"kind": AgentUserKind})


def agent_user_key(kind: AgentUserKind, name: str) -> Key:
    """Return the key of the row of an agent user."""
    return Key(PARTITION, f"{kind}#{quote(name, safe='')}")


def allows_root(table: StateTable) -> bool:
    """Return whether the cluster configuration allows root as an agent user."""
    row = table.get(_CONFIGURATION)
    return row is not None and json.loads(row.body).get(ROOT_SETTING) is True


def agent_user_ids(table: StateTable, owner: str, workspace: str) -> str:
    """Return the agent user of an experiment's trials as `UID:GID`. "" without an agent user.

    Two rows are read.

    Args:
        table: the state table.
        owner: the owner of the experiment.
        workspace: the workspace of the experiment.
    """
    uid, gid, *_ = _read_agent_user(table, owner, workspace)
    return "" if uid is None or gid is None else f"{uid}:{gid}"


def agent_user_fields(table: StateTable, owner: str, workspace: str) -> dict[str, Any]:
    """Return the fields of a trial's spec for the agent user. {} without an agent user.

    A user with the id of root gets a `refusal`, with which no agent starts the trial, unless the
    cluster allows root.

    Args:
        table: the state table, of which two rows are read, and the configuration for root.
        owner: the owner of the experiment.
        workspace: the workspace in which the experiment was submitted.
    """
    uid, gid, user, group = _read_agent_user(table, owner, workspace)
    if uid is None or gid is None:
        return {}
    fields = {"uid": uid, "gid": gid, "user": user, "group": group}
    if 0 in (uid, gid) and not allows_root(table):
        fields["refusal"] = ROOT_REFUSED
    return {"version": SPEC_VERSION, "agent_user": fields}


def _read_agent_user(
    table: StateTable, owner: str, workspace: str
) -> tuple[int | None, int | None, str, str]:
    """Return the ids and the names of the user and the group. An unknown id is None."""
    keys = (
        agent_user_key(AgentUserKind.USER, owner),
        agent_user_key(AgentUserKind.WORKSPACE, workspace),
    )
    uid = gid = None
    user = group = ""
    for row in table.get_many(keys):
        record = None if row is None else CODEC.decode(row.body)
        if record is not None and record.uid is not None:
            uid, user = record.uid, record.user
        if record is not None and record.gid is not None:
            gid, group = record.gid, record.group
    return uid, gid, user, group
