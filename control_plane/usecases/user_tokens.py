"""Tokens created by users: who may create which token, their records, and their revocation.

A record never holds the token itself.
"""

import hmac
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from control_plane.access.principals import Principal, Role
from control_plane.access.tokens import find_revoked, token_digest, token_put
from control_plane.actors.agent.token_rows import TOKENS
from control_plane.actors.identifiers import COUNTERS
from control_plane.errors import Code, RequestError, invalid
from control_plane.queries import pool as pools
from control_plane.services import Services
from control_plane.state.table import (
    Check,
    Conflict,
    Delete,
    Expect,
    Key,
    Put,
    Row,
    StateTable,
    Write,
)
from control_plane.usecases.idempotency import ExtraWrites
from control_plane.usecases.row_changes import change_row
from detcloud.shared.tokens import mint_token

RECORDS = "token-entries"
DAY_MS = 24 * 3600 * 1000

_COUNTER = Key(COUNTERS, "token")
_TRIES_MAX = 50
# Each of them is looked up with every request.
MAKERS_MAX = 8


@dataclass(frozen=True)
class TokenRecord:
    """A token's row. `digest` names the token; `made_by` and `revoked_by` are users; `subject` is
    the pool that a token of the role join lets agents into, and `makers` as a Principal's.
    """

    id: int
    user: str
    role: Role
    description: str
    created_ms: int
    expires_ms: int | None
    digest: str
    made_by: str
    revoked_by: str | None = None
    subject: str = ""
    makers: tuple[str, ...] = ()


@dataclass(frozen=True)
class MintedToken:
    """A new token's id, and the token encrypted with its maker's own token."""

    id: int
    sealed: str


@dataclass(frozen=True)
class TokenRequest:
    """A token as a user asks for it: without a user it is the caller's own, and without
    `expires_days` it ends with the caller's token.
    """

    user: str | None
    role: Role
    resource_pool: str | None
    description: str
    expires_days: int | None


def draft_record(services: Services, request: TokenRequest, caller: Principal) -> TokenRecord:
    """The record of a token that the caller may make, without id and digest. It does not outlive
    the caller's own token.

    Raises:
        RequestError: forbidden; invalid, for a join token without a pool, and for any other with
            one; not_found, for a pool that does not exist.
    """
    user = caller.user if request.user is None else request.user
    is_admin = caller.role is Role.ADMIN
    if not is_admin and user != caller.user:
        raise RequestError(Code.FORBIDDEN, f"only an admin can create a token for {user}")
    if not is_admin and request.role is Role.ADMIN:
        raise RequestError(Code.FORBIDDEN, "only an admin can create a token with the role admin")
    _check_pool(services, request, is_admin)
    days, now_ms = request.expires_days, services.now_ms()
    ends_ms = [] if days is None else [now_ms + days * DAY_MS]
    ends_ms += [] if caller.expires_ms is None else [caller.expires_ms]
    return TokenRecord(
        id=0,
        user=user,
        role=request.role,
        description=request.description,
        created_ms=now_ms,
        expires_ms=min(ends_ms, default=None),
        digest="",
        made_by=caller.user,
        makers=caller.makers,
        subject=request.resource_pool or "",
    )


def _check_pool(services: Services, request: TokenRequest, is_admin: bool) -> None:
    """Check that a join token, and no other, names the pool whose agents it is for."""
    if (request.role is Role.JOIN) is (request.resource_pool is None):
        raise invalid(
            "resource_pool", "is required for tokens with the role join, and for these only"
        )
    if request.resource_pool is None:
        return
    if not is_admin:
        raise RequestError(Code.FORBIDDEN, "only an admin can create a join token")
    pools.get_pool(services, request.resource_pool)


def check_owner(record: TokenRecord, caller: Principal) -> None:
    """Raise RequestError forbidden unless the caller may see and revoke the token."""
    if caller.role is not Role.ADMIN and record.user != caller.user:
        text = f"token {record.id} is not yours; an admin can revoke it"
        raise RequestError(Code.FORBIDDEN, text)


def decode_record(body: bytes) -> TokenRecord:
    """Decode the body of a token's row."""
    fields = json.loads(body)
    makers = tuple(fields.get("makers", ()))
    return TokenRecord(**{**fields, "role": Role(fields["role"]), "makers": makers})


def find_ended(table: StateTable, records: Sequence[TokenRecord]) -> set[int]:
    """The ids of those of the records whose tokens were revoked, themselves or with a maker."""
    revoked = find_revoked(table, [digest for record in records for digest in record.makers])
    return {
        record.id
        for record in records
        if record.revoked_by is not None or revoked.intersection(record.makers)
    }


def load_record(table: StateTable, token_id: int) -> TokenRecord:
    """Load the record of a token.

    Raises:
        RequestError: not_found.
    """
    row = table.get(_record_key(token_id))
    if row is None:
        raise _missing_error(token_id)
    return decode_record(row.body)


def create_token(
    table: StateTable, draft: TokenRecord, bearer: str, extra_writes: ExtraWrites
) -> MintedToken:
    """Make the token that `draft` describes, with a new id and digest, in one commit.

    `bearer` is the token of the user who asks: a repeated request brings it again, and nothing else
    decrypts the new token that is stored for that. Unless it is one of the cluster's own, which
    nobody can revoke, the new token ends with it.

    Raises:
        RequestError: unauthenticated, if `bearer` was revoked meanwhile; conflict, for a token that
            was made by too many others.
    """
    token = mint_token()
    bearer_key = Key(TOKENS, token_digest(bearer))
    makers = extend_makers(table, draft.makers, bearer)
    is_revocable = makers != draft.makers
    guards: tuple[Write, ...] = (Check(bearer_key, Expect.PRESENT),) if is_revocable else ()
    draft = replace(draft, makers=makers)
    principal = Principal(
        draft.user, draft.role, draft.subject, draft.expires_ms, makers=draft.makers
    )
    for _ in range(_TRIES_MAX):
        row = table.get(_COUNTER)
        number = int(row.body) if row else 1
        revision = row.revision if row else 0
        next_number = b"%d" % (number + 1)
        record = replace(draft, id=number, digest=token_digest(token))
        minted = MintedToken(number, encrypt_token(token.encode(), bearer, number).hex())
        try:
            table.commit(
                (
                    Put(_COUNTER, revision + 1, next_number, revision or Expect.ABSENT),
                    Put(_record_key(number), 1, json.dumps(asdict(record)).encode(), Expect.ABSENT),
                    token_put(record.digest, principal),
                    *guards,
                    *extra_writes(asdict(minted)),
                )
            )
        except Conflict as conflict:
            if conflict.key == bearer_key:
                text = "the token was revoked in the meantime"
                raise RequestError(Code.UNAUTHENTICATED, text) from None
            if conflict.key.partition not in (COUNTERS, RECORDS):
                raise
        else:
            return minted
    raise RequestError(
        Code.UNAVAILABLE, "too many tokens are being created at the same time; try again"
    )


def extend_makers(table: StateTable, makers: tuple[str, ...], bearer: str) -> tuple[str, ...]:
    """The makers of what a token makes whose own are `makers`: the token too, unless it is one of
    the cluster's own, which nobody can revoke.

    Raises:
        RequestError: conflict, where they would be too many.
    """
    digest = token_digest(bearer)
    if table.get(Key(TOKENS, digest)) is None:
        return makers
    if len(makers) >= MAKERS_MAX:
        text = f"a token that {MAKERS_MAX} others made one after the other makes no further one"
        raise RequestError(Code.CONFLICT, f"{text}; use the first of them")
    return (*makers, digest)


def encrypt_token(content: bytes, bearer: str, token_id: int) -> bytes:
    """Encrypt up to 64 bytes with a pad derived from `bearer`, for this id only; encrypting the
    result again decrypts it.
    """
    pad = hmac.digest(bearer.encode(), b"token %d" % token_id, "sha512")
    return bytes(one ^ other for one, other in zip(content, pad, strict=False))


def decrypt_token(minted: MintedToken, record: TokenRecord, bearer: str) -> str | None:
    """Decrypt the token; None where `bearer` is not the token of the user who made it."""
    token = encrypt_token(bytes.fromhex(minted.sealed), bearer, minted.id).decode(errors="replace")
    return token if token_digest(token) == record.digest else None


def revoke_token(table: StateTable, token_id: int, by: str, extra_writes: ExtraWrites) -> int:
    """Revoke a token and all that were made with it; its record stays, as does one that is
    revoked already.

    Raises:
        RequestError: not_found.
    """

    def change(row: Row | None) -> tuple[int, tuple[Write, ...]]:
        if row is None:
            raise _missing_error(token_id)
        record = decode_record(row.body)
        record = record if record.revoked_by is not None else replace(record, revoked_by=by)
        body = json.dumps(asdict(record)).encode()
        return token_id, (
            Put(row.key, row.revision + 1, body, row.revision),
            Delete(Key(TOKENS, record.digest), Expect.ANYTHING),
            *extra_writes(token_id),
        )

    return change_row(table, _record_key(token_id), change, f"token {token_id}")


def _missing_error(token_id: int) -> RequestError:
    return RequestError(Code.NOT_FOUND, f"there is no token {token_id}")


def _record_key(token_id: int) -> Key:
    return Key(RECORDS, f"{token_id:012d}")
