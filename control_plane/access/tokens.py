"""Stores of tokens: the holder of each, by the token's digest.

An agent has the token of its last enrolment. Users create and revoke theirs:
usecases/user_tokens.py.
"""

import hashlib
import hmac
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Protocol

from control_plane.access.principals import Principal, Role
from control_plane.actors.agent.token_rows import TOKEN_HOLDERS, TOKENS
from control_plane.errors import Code, RequestError
from control_plane.state.table import (
    GET_MAX,
    Conflict,
    Delete,
    Expect,
    Key,
    Put,
    StateTable,
    Write,
)
from detcloud.shared.tokens import mint_token

_ISSUE_TRIES_MAX = 20


class TokenStore(Protocol):
    """The holders of tokens, by the SHA-256 of each: the tokens themselves are never stored."""

    def find_principal(self, digest: str) -> Principal | None:
        """The holder of the token with this digest; None when unknown, expired or revoked. May
        block.
        """
        ...


class StaticTokens:
    """A fixed set of tokens, by digest."""

    def __init__(self, principals: Mapping[str, Principal]) -> None:
        self._principals = dict(principals)

    def find_principal(self, digest: str) -> Principal | None:
        holder = None
        for known, principal in self._principals.items():
            if hmac.compare_digest(known, digest):
                holder = principal
        return holder


def join_halves(cookie: str, key: str) -> str:
    """Return the token of the browser's session with these halves."""
    return f"{cookie}.{key}"


def token_digest(token: str) -> str:
    """The SHA-256 of a token in hexadecimal: all that is stored of it."""
    return hashlib.sha256(token.encode()).hexdigest()


class TableTokens:
    """The tokens in the state table, and behind them those of `others`. `now_ms`: the clock."""

    def __init__(self, table: StateTable, others: TokenStore, now_ms: Callable[[], int]) -> None:
        self._table = table
        self._others = others
        self._now_ms = now_ms

    def find_principal(self, digest: str) -> Principal | None:
        """The holder of the token with this digest, as described in TokenStore."""
        row = self._table.get(Key(TOKENS, digest))
        if row is None:
            return self._others.find_principal(digest)
        fields = json.loads(row.body)
        expires_ms = fields.get("expires_ms")
        if expires_ms is not None and self._now_ms() >= expires_ms:
            return None
        makers = tuple(fields.get("makers", ()))
        if find_revoked(self._table, makers):
            return None
        return Principal(**{**fields, "role": Role(fields["role"]), "makers": makers})


def find_revoked(table: StateTable, digests: Iterable[str]) -> set[str]:
    """The digests, of tokens that users made, whose tokens were revoked."""
    wanted = sorted(set(digests))
    found: set[str] = set()
    for start in range(0, len(wanted), GET_MAX):
        keys = [Key(TOKENS, digest) for digest in wanted[start : start + GET_MAX]]
        found |= {row.key.sort for row in table.get_many(keys) if row is not None}
    return set(wanted) - found


def issue_agent_token(table: StateTable, agent: str, epoch: int) -> str:
    """Create a token for the routes of `agent`, in place of the one it had.

    Raises:
        RequestError: conflict, if the agent has enrolled again meanwhile.
    """
    token = mint_token()
    for _ in range(_ISSUE_TRIES_MAX):
        try:
            table.commit(_token_writes(table, agent, epoch, token_digest(token)))
        except Conflict:
            continue
        return token
    raise RequestError(
        Code.UNAVAILABLE, f"agent {agent} is being enrolled from several places at the same time"
    )


def _token_writes(table: StateTable, agent: str, epoch: int, digest: str) -> list[Write]:
    holder = table.get(Key(TOKEN_HOLDERS, agent))
    principal = Principal(f"agent {agent}", Role.AGENT, agent)
    new = json.dumps({"epoch": epoch, "digest": digest}).encode()
    revision = holder.revision if holder else 0
    writes: list[Write] = [
        token_put(digest, principal),
        Put(Key(TOKEN_HOLDERS, agent), revision + 1, new, revision or Expect.ABSENT),
    ]
    if holder is not None:
        former = json.loads(holder.body)
        if former["epoch"] >= epoch:
            raise RequestError(Code.CONFLICT, f"agent {agent} has enrolled again")
        writes.append(Delete(Key(TOKENS, former["digest"]), Expect.ANYTHING))
    return writes


def token_put(digest: str, principal: Principal) -> Put:
    """The write that makes a token valid, for `principal`."""
    return Put(Key(TOKENS, digest), 1, json.dumps(asdict(principal)).encode(), Expect.ABSENT)
