"""Tokens created by users: the permission to create a token, records of tokens, and revocation.

A record contains the digest of a token, never the token itself.
"""

import hmac
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

from control_plane.access.ownership import OwnedObject
from control_plane.access.principals import Principal, Role, role_of_row, stand_in_of
from control_plane.access.tokens import TokenStore, find_revoked, token_digest, token_put
from control_plane.actors.identifiers import COUNTERS
from control_plane.errors import Code, RequestError, invalid
from control_plane.queries import pool as pools
from control_plane.rows import user_rows
from control_plane.rows.json_codec import JsonCodec
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

RECORDS = user_rows.TOKEN_ENTRY.partition
MINUTE_MS = 60 * 1000
DAY_MS = 24 * 60 * MINUTE_MS
# The lifetime of a join token that is good for one agent, unless the request names another.
ONCE_MINUTES = 60

_COUNTER = Key(COUNTERS, "token")
_TRIES_MAX = 50
_REVOKED_SINCE = "the token was revoked in the meantime"
# The most makers of a token. Every request with the token looks up all makers.
MAKERS_MAX = 8


@dataclass(frozen=True)
class TokenRecord:
    """The stored record of a token."""

    id: int
    user: str
    """The user for whom the token is valid."""
    role: Role
    description: str
    created_ms: int
    expires_ms: int | None
    """The end of the token; None if the token does not expire."""
    digest: str
    """The digest of the token, which is the key of its row among the valid tokens."""
    made_by: str
    """The user who created the token."""
    revoked_by: str | None = None
    """The user who revoked the token; None if it is not revoked."""
    subject: str = ""
    """The pool of a join token; "" for other roles."""
    makers: tuple[str, ...] = ()
    """The digests of the tokens that created this token, directly or through other tokens.

    Revoking any of them also ends this token.
    """
    stored_role: str = ""
    """The role in a stored row, if `role` is a stand-in for the role. "" outside stored rows."""
    once: bool = False
    """Whether a join token is good for one agent only."""
    used_by: str = ""
    """The agent that used a join token of this kind. "" if no agent has used the token."""


_CODEC = JsonCodec(
    user_rows.TOKEN_ENTRY,
    TokenRecord,
    {"role": Role, "makers": tuple},
    omitted=frozenset({"stored_role", "once", "used_by"}),
)


@dataclass(frozen=True)
class MintedToken:
    """A new token, encrypted."""

    id: int
    sealed: str
    """The token in hexadecimal, encrypted with the token of the user who created it."""


@dataclass(frozen=True)
class TokenRequest:
    """A user's request for a new token."""

    user: str | None
    """The user of the new token; None for the caller."""
    role: Role
    resource_pool: str | None
    """The pool of a join token; None for other roles."""
    description: str
    expires_days: int | None
    """The lifetime in days; None lets the new token end with the caller's token."""
    expires_minutes: int | None = None
    """The lifetime in minutes, in place of `expires_days`."""
    once: bool = False
    """Whether the join token is good for one agent only."""


def draft_record(services: Services, request: TokenRequest, caller: Principal) -> TokenRecord:
    """Check that the caller may create the token; return the record without id and digest.

    Store nothing.

    The token ends no later than the caller's own token. Only admins may create tokens for other
    users, tokens of the role admin, and join tokens.

    Raises:
        RequestError: forbidden, for a token that the caller may not create; invalid, for a join
            token without a pool, or another token with a pool; not_found, if the pool does not
            exist.
    """
    user = caller.user if request.user is None else request.user
    is_admin = caller.role is Role.ADMIN
    if not is_admin and user != caller.user:
        raise RequestError(Code.FORBIDDEN, f"only an admin can create a token for {user}")
    if not is_admin and request.role is Role.ADMIN:
        raise RequestError(Code.FORBIDDEN, "only an admin can create a token with the role admin")
    _check_pool(services, request, is_admin)
    now_ms, lifetime_ms = services.now_ms(), _lifetime_ms(request)
    ends_ms = [] if lifetime_ms is None else [now_ms + lifetime_ms]
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
        once=request.once,
    )


def _lifetime_ms(request: TokenRequest) -> int | None:
    """Return the lifetime of a new token in ms. Return None for a token without its own end.

    A join token that is good for one agent has an end in any case.

    Raises:
        RequestError: invalid, if both units are given, or `once` belongs to another role than join.
    """
    if request.once and request.role is not Role.JOIN:
        raise invalid("once", "is possible for tokens with the role join only")
    if request.expires_days is not None and request.expires_minutes is not None:
        raise invalid("expires_minutes", "cannot be combined with expires_days")
    if request.expires_days is not None:
        return request.expires_days * DAY_MS
    if request.expires_minutes is not None:
        return request.expires_minutes * MINUTE_MS
    return ONCE_MINUTES * MINUTE_MS if request.once else None


def _check_pool(services: Services, request: TokenRequest, is_admin: bool) -> None:
    """Check that a join token names an existing pool and other tokens name no pool.

    Raises:
        RequestError: invalid, for a join token without a pool, or another token with a pool;
            forbidden, for a join token of a caller who is no admin; not_found, if the pool does not
            exist.
    """
    if (request.role is Role.JOIN) is (request.resource_pool is None):
        raise invalid(
            "resource_pool", "is required for tokens with the role join, and for these only"
        )
    if request.resource_pool is None:
        return
    if not is_admin:
        raise RequestError(Code.FORBIDDEN, "only an admin can create a join token")
    pools.get_pool(services, request.resource_pool)


def owned_token(record: TokenRecord) -> OwnedObject:
    """Return the ownership of a token. The token's user owns the token, not the creator."""
    return OwnedObject(f"token {record.id}", (record.user,))


def find_owned_token(table: StateTable, token_id: int) -> tuple[OwnedObject, ...]:
    """Return the ownership of a token, as a tuple with a single element.

    Raises:
        RequestError: not_found, if the token does not exist.
    """
    return (owned_token(load_record(table, token_id)),)


def decode_record(body: bytes) -> TokenRecord:
    """Decode the body of a token's row. Ignore fields of newer versions."""
    stored = _CODEC.decode(body)
    return replace(stored, role=role_of_row(stored.role, stored.stored_role), stored_role="")


def encode_record(record: TokenRecord, before: bytes | None = None) -> bytes:
    """Encode the record of a token as the body of a row.

    Args:
        record: the record.
        before: the body of the row that is replaced, with fields of newer versions to keep.
    """
    role, stored_role = stand_in_of(record.role)
    return _CODEC.encode(replace(record, role=role, stored_role=stored_role), before)


def find_ended(table: StateTable, records: Sequence[TokenRecord]) -> set[int]:
    """Return the ids of the records with revoked tokens.

    A token is revoked by itself or together with a maker, a token that led to its creation. Expired
    tokens are not included. The rows of all makers are read.
    """
    revoked = find_revoked(table, [digest for record in records for digest in record.makers])
    return {
        record.id
        for record in records
        if record.revoked_by is not None or revoked.intersection(record.makers)
    }


def load_record(table: StateTable, token_id: int) -> TokenRecord:
    """Load the record of a token, also of an expired or revoked token.

    Raises:
        RequestError: not_found, if the token does not exist.
    """
    row = table.get(_record_key(token_id))
    if row is None:
        raise _missing_error(token_id)
    return decode_record(row.body)


def create_token(
    table: StateTable,
    tokens: TokenStore,
    draft: TokenRecord,
    bearer: str,
    extra_writes: ExtraWrites,
) -> MintedToken:
    """Create the token that `draft` describes, with a new id; return the token encrypted.

    A single commit stores the token's digest and its record, and increments the counter of ids. The
    token is encrypted with `bearer`, because the answer is stored for repetitions of the request.
    Only a request with the same bearer can decrypt it.

    Args:
        table: the state table.
        tokens: all valid tokens.
        draft: the result of `draft_record`.
        bearer: the caller's own token. Revoking it also ends the new token, unless it is a token of
            the cluster itself, which cannot be revoked.
        extra_writes: returns further writes of the commit, given the result as plain JSON.

    Raises:
        RequestError: unauthenticated, if `bearer` was revoked in the meantime; conflict, if the new
            token would have more than MAKERS_MAX makers; unavailable, if too many tokens are
            created at the same time.
        Conflict: the condition of an extra write does not hold; nothing was written.
    """
    token = mint_token()
    bearer_key = Key(user_rows.TOKEN.partition, token_digest(bearer))
    makers = extend_makers(table, tokens, draft.makers, bearer)
    is_revocable = makers != draft.makers
    guards: tuple[Write, ...] = (Check(bearer_key, Expect.PRESENT),) if is_revocable else ()
    sealed: list[MintedToken] = []

    def seal(record: TokenRecord) -> tuple[Write, ...]:
        minted = MintedToken(record.id, encrypt_token(token.encode(), bearer, record.id).hex())
        sealed[:] = [minted]
        return (*guards, *extra_writes(asdict(minted)))

    try:
        store_token(table, replace(draft, makers=makers), token, seal)
    except Conflict as conflict:
        if conflict.key == bearer_key:
            raise RequestError(Code.UNAUTHENTICATED, _REVOKED_SINCE) from None
        raise
    return sealed[0]


def store_token(
    table: StateTable,
    draft: TokenRecord,
    token: str,
    more_writes: Callable[[TokenRecord], Sequence[Write]],
) -> TokenRecord:
    """Store a new token, with the record `draft` and a new id; return the complete record.

    A single commit stores the token's digest and its record, and increments the counter of ids.

    Args:
        table: the state table.
        draft: the record without id and digest.
        token: the new token.
        more_writes: returns further writes of the commit, given the record. Called again after a
            conflict on the counter.

    Raises:
        RequestError: unavailable, if too many tokens are created at the same time.
        Conflict: the condition of a further write does not hold; nothing was written.
    """
    for _ in range(_TRIES_MAX):
        row = table.get(_COUNTER)
        number = int(row.body) if row else 1
        revision = row.revision if row else 0
        next_number = b"%d" % (number + 1)
        record = replace(draft, id=number, digest=token_digest(token))
        principal = _principal(record)
        try:
            table.commit(
                (
                    Put(_COUNTER, revision + 1, next_number, revision or Expect.ABSENT),
                    Put(_record_key(number), 1, encode_record(record), Expect.ABSENT),
                    token_put(record.digest, principal),
                    *more_writes(record),
                )
            )
        except Conflict as conflict:
            if conflict.key.partition not in (COUNTERS, RECORDS):
                raise
        else:
            return record
    raise RequestError(
        Code.UNAVAILABLE, "too many tokens are being created at the same time; try again"
    )


def _principal(record: TokenRecord) -> Principal:
    """Return the principal of a new token."""
    return Principal(
        record.user,
        record.role,
        record.subject,
        record.expires_ms,
        makers=record.makers,
        token_id=record.id if record.once else 0,
    )


def use_writes(table: StateTable, token_id: int, agent: str) -> tuple[Write, ...]:
    """Return the write that records the agent which used a join token; commit nothing.

    Return () for a token without a record, and for a token that the agent has used already.
    """
    row = table.get(_record_key(token_id))
    if row is None:
        return ()
    record = decode_record(row.body)
    if record.used_by == agent:
        return ()
    body = encode_record(replace(record, used_by=agent), row.body)
    return (Put(row.key, row.revision + 1, body, row.revision),)


def extend_makers(
    table: StateTable, tokens: TokenStore, makers: tuple[str, ...], bearer: str
) -> tuple[str, ...]:
    """Return the makers of a token that the token `bearer` creates, oldest first; write nothing.

    The result is `makers` and, at the end, the digest of `bearer`. For a token of the cluster
    itself, return `makers` unchanged: the token has no row and cannot be revoked.

    Args:
        table: the state table.
        tokens: all valid tokens.
        makers: the makers of `bearer`, as in TokenRecord.
        bearer: the token of the caller.

    Raises:
        RequestError: unauthenticated, if `bearer` is not valid, for example revoked in the
            meantime; conflict, if the result would have more than MAKERS_MAX makers.
    """
    digest = token_digest(bearer)
    if table.get(Key(user_rows.TOKEN.partition, digest)) is None:
        if tokens.find_principal(digest) is None:
            raise RequestError(Code.UNAUTHENTICATED, _REVOKED_SINCE)
        return makers
    if len(makers) >= MAKERS_MAX:
        text = f"this token is the end of a chain of {MAKERS_MAX} tokens, each created by the last"
        raise RequestError(Code.CONFLICT, f"{text}; use the first token of the chain")
    return (*makers, digest)


def encrypt_token(content: bytes, bearer: str, token_id: int) -> bytes:
    """Encrypt or decrypt up to 64 bytes with a pad derived from `bearer` and `token_id`.

    The operation is its own inverse. Bytes after the 64th are dropped.
    """
    pad = hmac.digest(bearer.encode(), b"token %d" % token_id, "sha512")
    return bytes(byte ^ pad_byte for byte, pad_byte in zip(content, pad, strict=False))


def decrypt_token(minted: MintedToken, record: TokenRecord, bearer: str) -> str | None:
    """Return the new token in plain text. Return None if `bearer` did not create the new token.

    `record` has the digest of the new token, which proves the result.
    """
    token = encrypt_token(bytes.fromhex(minted.sealed), bearer, minted.id).decode(errors="replace")
    return token if token_digest(token) == record.digest else None


def revoke_token(table: StateTable, token_id: int, by: str, extra_writes: ExtraWrites) -> int:
    """Revoke a token and, directly or indirectly, all tokens created with the token; return the id.

    The commit deletes the row of the token's digest. The record is kept and names the user who
    revoked the token first. Revoking the token again changes nothing but commits the extra writes.

    Args:
        table: the state table.
        token_id: the token.
        by: the user who revokes the token.
        extra_writes: returns further writes of the commit, given the id.

    Raises:
        RequestError: not_found, if the token does not exist; unavailable, if other requests keep
            changing the token.
        Conflict: the condition of an extra write does not hold; nothing was written.
    """

    def change(row: Row | None) -> tuple[int, tuple[Write, ...]]:
        if row is None:
            raise _missing_error(token_id)
        record = decode_record(row.body)
        record = record if record.revoked_by is not None else replace(record, revoked_by=by)
        body = encode_record(record, row.body)
        return token_id, (
            Put(row.key, row.revision + 1, body, row.revision),
            Delete(Key(user_rows.TOKEN.partition, record.digest), Expect.ANYTHING),
            *extra_writes(token_id),
        )

    return change_row(table, _record_key(token_id), change, f"token {token_id}")


def _missing_error(token_id: int) -> RequestError:
    """Return RequestError not_found for a token that does not exist; raise nothing."""
    return RequestError(Code.NOT_FOUND, f"there is no token {token_id}")


def _record_key(token_id: int) -> Key:
    """Return the key of a token's record."""
    return Key(RECORDS, f"{token_id:012d}")
