"""Changes of agent users, the users of the machines that trials run as."""

from collections.abc import Callable

from control_plane.access.agent_users import (
    CODEC,
    ROOT_REFUSED,
    AgentUserKind,
    AgentUserRecord,
    agent_user_key,
    allows_root,
)
from control_plane.errors import Code, RequestError, invalid
from control_plane.state.table import Delete, Row, StateTable, Write
from control_plane.usecases.row_changes import change_row, replacing_put

AgentUserExtraWrites = Callable[[AgentUserRecord], tuple[Write, ...]]
"""Returns further writes for the commit of a change, given the agent user."""


def put_agent_user(
    table: StateTable, record: AgentUserRecord, extra_writes: AgentUserExtraWrites
) -> AgentUserRecord:
    """Create or replace the agent user of a user or a workspace; return the record.

    Running trials keep their user until the next start.

    Raises:
        RequestError: invalid, for a user without both ids, for a workspace without an id, and for
            the id of root unless the cluster allows root; unavailable, if other requests keep
            changing the row.
        Conflict: the condition of an extra write does not hold; nothing was written.
    """
    ids = (record.uid, record.gid)
    if record.kind is AgentUserKind.USER and None in ids:
        raise invalid("uid", "and gid are both required for a user")
    if ids == (None, None):
        raise invalid("uid", "or gid is required for a workspace")
    if record.is_root and not allows_root(table):
        raise RequestError(Code.INVALID, ROOT_REFUSED)
    key = agent_user_key(record.kind, record.name)

    def change(row: Row | None) -> tuple[AgentUserRecord, tuple[Write, ...]]:
        body = CODEC.encode(record, row.body if row else None)
        put = replacing_put(key, row, body, record.changed_ms)
        return record, (put, *extra_writes(record))

    return change_row(table, key, change, f"the agent user of {record.kind} {record.name}")


def delete_agent_user(
    table: StateTable, kind: AgentUserKind, name: str, extra_writes: AgentUserExtraWrites
) -> AgentUserRecord:
    """Delete the agent user of a user or a workspace; return the deleted record.

    Raises:
        RequestError: not_found, if the user or workspace has no agent user; unavailable, if other
            requests keep changing the row.
        Conflict: the condition of an extra write does not hold; nothing was written.
    """
    key = agent_user_key(kind, name)

    def change(row: Row | None) -> tuple[AgentUserRecord, tuple[Write, ...]]:
        if row is None:
            raise RequestError(Code.NOT_FOUND, f"{kind} {name} has no agent user")
        record = CODEC.decode(row.body)
        return record, (Delete(row.key, row.revision), *extra_writes(record))

    return change_row(table, key, change, f"the agent user of {kind} {name}")
