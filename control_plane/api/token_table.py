"""Tokens in the state table, by digest. Each agent has that of its last enrolment; people make and
revoke theirs, see token_entries.py.
"""

import json
from collections.abc import Callable
from dataclasses import asdict

from control_plane.actors.agent import HOLDERS, TOKENS
from control_plane.api.auth import Principal, Role, Tokens, digest_of
from control_plane.api.errors import ApiError, Code
from control_plane.state.table import Conflict, Delete, Expect, Key, Put, StateTable, Write
from detcloud.tokens import mint_token

_ISSUE_TRIES_MAX = 20


class TableTokens:
    """The table's tokens, and behind them those of `others`. `now_ms` is the clock."""

    def __init__(self, table: StateTable, others: Tokens, now_ms: Callable[[], int]) -> None:
        self._table = table
        self._others = others
        self._now_ms = now_ms

    def principal(self, digest: str) -> Principal | None:
        """See Tokens."""
        row = self._table.get(Key(TOKENS, digest))
        if row is None:
            return self._others.principal(digest)
        fields = json.loads(row.body)
        expires_ms = fields.get("expires_ms")
        if expires_ms is not None and self._now_ms() >= expires_ms:
            return None
        return Principal(**{**fields, "role": Role(fields["role"])})


def issue_agent_token(table: StateTable, agent: str, epoch: int) -> str:
    """A token for the routes of `agent`, in place of the one it had.

    Raises:
        ApiError: conflict, if the agent has enrolled again meanwhile.
    """
    token = mint_token()
    for _ in range(_ISSUE_TRIES_MAX):
        try:
            table.commit(_exchange(table, agent, epoch, digest_of(token)))
        except Conflict:
            continue
        return token
    raise ApiError(Code.UNAVAILABLE, f"agent {agent} enrols from several places at once")


def _exchange(table: StateTable, agent: str, epoch: int, digest: str) -> list[Write]:
    holder = table.get(Key(HOLDERS, agent))
    holds = Principal(f"agent {agent}", Role.AGENT, agent)
    new = json.dumps({"epoch": epoch, "digest": digest}).encode()
    revision = holder.revision if holder else 0
    writes: list[Write] = [
        put_token(digest, holds),
        Put(Key(HOLDERS, agent), revision + 1, new, revision or Expect.ABSENT),
    ]
    if holder is not None:
        former = json.loads(holder.body)
        if former["epoch"] >= epoch:
            raise ApiError(Code.CONFLICT, f"agent {agent} has enrolled again")
        writes.append(Delete(Key(TOKENS, former["digest"]), Expect.ANYTHING))
    return writes


def put_token(digest: str, holds: Principal) -> Put:
    """The write that makes a token good."""
    return Put(Key(TOKENS, digest), 1, json.dumps(asdict(holds)).encode(), Expect.ABSENT)
