"""The tokens that people make: what is known of each, but never the token itself."""

import hmac
import json
from dataclasses import asdict, dataclass, replace

from control_plane.actors.agent import TOKENS
from control_plane.actors.identifiers import COUNTERS
from control_plane.api.auth import Principal, Role, digest_of
from control_plane.api.errors import ApiError, Code
from control_plane.api.idempotency import Beside
from control_plane.api.row_changes import change_row
from control_plane.api.token_table import put_token
from control_plane.state.table import (
    Conflict,
    Delete,
    Expect,
    Key,
    Put,
    Row,
    StateTable,
    Write,
)
from detcloud.tokens import mint_token

ENTRIES = "token-entries"

_COUNTER = Key(COUNTERS, "token")
_TRIES_MAX = 50


@dataclass(frozen=True)
class Entry:
    """A token's row. `digest` names the token; `made_by` and `revoked_by` are users; `subject` is
    the pool that a token of the role join lets agents into.
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


@dataclass(frozen=True)
class Minted:
    """A new token's id, and the token as only its maker's own token opens it."""

    id: int
    sealed: str


def read_entry(body: bytes) -> Entry:
    """An entry as stored."""
    fields = json.loads(body)
    return Entry(**{**fields, "role": Role(fields["role"])})


def entry_of(table: StateTable, token_id: int) -> Entry:
    """The entry of a token.

    Raises:
        ApiError: not_found.
    """
    row = table.get(_key(token_id))
    if row is None:
        raise _no_token(token_id)
    return read_entry(row.body)


def mint(table: StateTable, asked: Entry, bearer: str, beside: Beside) -> Minted:
    """Makes the token that `asked` describes, but for its id and digest, in one commit.

    `bearer` is the token of who asks: a repeated request brings it again, and nothing else opens
    what is kept for that.
    """
    token = mint_token()
    holds = Principal(asked.user, asked.role, asked.subject, asked.expires_ms)
    for _ in range(_TRIES_MAX):
        row = table.get(_COUNTER)
        number = int(row.body) if row else 1
        revision = row.revision if row else 0
        counted = b"%d" % (number + 1)
        entry = replace(asked, id=number, digest=digest_of(token))
        minted = Minted(number, sealed(token.encode(), bearer, number).hex())
        try:
            table.commit(
                (
                    Put(_COUNTER, revision + 1, counted, revision or Expect.ABSENT),
                    Put(_key(number), 1, json.dumps(asdict(entry)).encode(), Expect.ABSENT),
                    put_token(entry.digest, holds),
                    *beside(asdict(minted)),
                )
            )
        except Conflict as conflict:
            if conflict.key.partition not in (COUNTERS, ENTRIES):
                raise
        else:
            return minted
    raise ApiError(Code.UNAVAILABLE, "too many tokens are made at once; try again")


def sealed(content: bytes, bearer: str, token_id: int) -> bytes:
    """Up to 64 bytes hidden by a pad that needs `bearer`, and is used for this id only; sealing
    again opens.
    """
    pad = hmac.digest(bearer.encode(), b"token %d" % token_id, "sha512")
    return bytes(one ^ other for one, other in zip(content, pad, strict=False))


def opened(minted: Minted, entry: Entry, bearer: str) -> str | None:
    """The token; None where `bearer` is not that of who made it."""
    token = sealed(bytes.fromhex(minted.sealed), bearer, minted.id).decode(errors="replace")
    return token if digest_of(token) == entry.digest else None


def revoke(table: StateTable, token_id: int, by: str, beside: Beside) -> int:
    """Ends a token at once, whose entry stays; one that is revoked already stays as it is.

    Raises:
        ApiError: not_found.
    """

    def change(row: Row | None) -> tuple[int, tuple[Write, ...]]:
        if row is None:
            raise _no_token(token_id)
        entry = read_entry(row.body)
        entry = entry if entry.revoked_by is not None else replace(entry, revoked_by=by)
        body = json.dumps(asdict(entry)).encode()
        return token_id, (
            Put(row.key, row.revision + 1, body, row.revision),
            Delete(Key(TOKENS, entry.digest), Expect.ANYTHING),
            *beside(token_id),
        )

    return change_row(table, _key(token_id), change, f"token {token_id}")


def _no_token(token_id: int) -> ApiError:
    return ApiError(Code.NOT_FOUND, f"there is no token {token_id}")


def _key(token_id: int) -> Key:
    return Key(ENTRIES, f"{token_id:012d}")
