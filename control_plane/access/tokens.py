"""Token stores: the principal of each token, by the digest of the token.

An agent's only valid token is the token of its last enrolment. usecases/user_tokens.py creates and
revokes the tokens of users.
"""

import hashlib
import hmac
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from control_plane.access.principals import Principal, Role, role_of_row, stand_in_of
from control_plane.errors import Code, RequestError
from control_plane.rows import agent_rows, user_rows
from control_plane.rows.json_codec import JsonCodec
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

_TOKENS = user_rows.TOKEN.partition
_HOLDERS = agent_rows.TOKEN_HOLDER.partition
_CODEC = JsonCodec(
    user_rows.TOKEN,
    Principal,
    {"role": Role, "makers": tuple},
    omitted=frozenset({"stored_role", "token_id", "installation"}),
)
_ISSUE_TRIES_MAX = 20


class TokenStore(Protocol):
    """A store of principals by the SHA-256 of the token. The tokens themselves are never stored."""

    def find_principal(self, digest: str) -> Principal | None:
        """Return the principal of the token with this digest. May block.

        Return None if the token is unknown, expired or revoked.
        """
        ...


class StaticTokens:
    """A fixed set of tokens that never expire, by digest."""

    def __init__(self, principals: Mapping[str, Principal]) -> None:
        self._principals = dict(principals)

    def find_principal(self, digest: str) -> Principal | None:
        """Return the principal of the token with this digest. Return None for an unknown digest."""
        matching_principal = None
        for stored_digest, principal in self._principals.items():
            if hmac.compare_digest(stored_digest, digest):
                matching_principal = principal
        return matching_principal


def join_halves(cookie: str, key: str) -> str:
    """Return the token of a browser session, which consists of the session's cookie and key."""
    return f"{cookie}.{key}"


def token_digest(token: str) -> str:
    """Return the SHA-256 of a token in hexadecimal, the only form in which tokens are stored."""
    return hashlib.sha256(token.encode()).hexdigest()


class TableTokens:
    """The tokens of the state table, followed by the tokens of another store.

    Args:
        others: the store for tokens without a row in the state table.
        now_ms: returns the time in epoch ms.
    """

    def __init__(self, table: StateTable, others: TokenStore, now_ms: Callable[[], int]) -> None:
        self._table = table
        self._others = others
        self._now_ms = now_ms

    def find_principal(self, digest: str) -> Principal | None:
        """Return the principal of the token with this digest.

        Return None if the token is unknown, expired or revoked, or if a token in `Principal.makers`
        was revoked.
        """
        row = self._table.get(Key(_TOKENS, digest))
        if row is None:
            return self._others.find_principal(digest)
        principal = decode_principal(row.body)
        expires_ms = principal.expires_ms
        if expires_ms is not None and self._now_ms() >= expires_ms:
            return None
        return None if find_revoked(self._table, principal.makers) else principal


def decode_principal(body: bytes) -> Principal:
    """Decode the body of a token's row. Ignore fields of newer releases."""
    stored = _CODEC.decode(body)
    return replace(stored, role=role_of_row(stored.role, stored.stored_role), stored_role="")


def encode_principal(principal: Principal, before: bytes | None = None) -> bytes:
    """Encode a principal as the body of a token's row.

    Args:
        principal: the principal.
        before: the body of the row that is replaced, with fields of newer releases to keep.
    """
    role, stored_role = stand_in_of(principal.role)
    return _CODEC.encode(replace(principal, role=role, stored_role=stored_role), before)


def find_revoked(table: StateTable, digests: Iterable[str]) -> set[str]:
    """Return the `digests` of revoked tokens: the digests without a row in the state table."""
    unique_digests = sorted(set(digests))
    valid_digests: set[str] = set()
    for start in range(0, len(unique_digests), GET_MAX):
        keys = [Key(_TOKENS, digest) for digest in unique_digests[start : start + GET_MAX]]
        valid_digests |= {row.key.sort for row in table.get_many(keys) if row is not None}
    return set(unique_digests) - valid_digests


def issue_agent_token(table: StateTable, agent: str, epoch: int) -> str:
    """Create and store a token for the routes of `agent`, and revoke the agent's previous token.

    Args:
        epoch: the epoch of the enrolment. It must be later than the epoch of the previous token.

    Raises:
        RequestError: conflict if a later enrolment has created a token already, and unavailable if
            concurrent enrolments always committed first.
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
    """Build the writes that store a new agent token and delete the previous token.

    Raises:
        RequestError: conflict if the previous token has the same epoch or a later epoch.
    """
    holder_row = table.get(Key(_HOLDERS, agent))
    principal = Principal(f"agent {agent}", Role.AGENT, agent)
    new = json.dumps({"epoch": epoch, "digest": digest}).encode()
    revision = holder_row.revision if holder_row else 0
    writes: list[Write] = [
        token_put(digest, principal),
        Put(Key(_HOLDERS, agent), revision + 1, new, revision or Expect.ABSENT),
    ]
    if holder_row is not None:
        previous = json.loads(holder_row.body)
        if previous["epoch"] >= epoch:
            raise RequestError(Code.CONFLICT, f"agent {agent} has enrolled again")
        writes.append(Delete(Key(_TOKENS, previous["digest"]), Expect.ANYTHING))
    return writes


def token_put(digest: str, principal: Principal) -> Put:
    """Build the Put that makes a token valid for `principal`. It conflicts with an existing
    digest.
    """
    return Put(token_key(digest), 1, encode_principal(principal), Expect.ABSENT)


def token_key(digest: str) -> Key:
    """Return the key of a token's row."""
    return Key(_TOKENS, digest)
