"""Sign-in of browsers: single-use codes, and sessions that a code or a token opens.

A session is a token in two halves. The browser keeps one half in a cookie that scripts cannot read,
and the other half in the storage of the page's origin. A half alone is not a valid token.
"""

import re
from dataclasses import dataclass, replace

from control_plane.access.principals import USER_ROLES, Principal, Role
from control_plane.access.tokens import find_revoked, join_halves, token_digest, token_put
from control_plane.errors import Code, RequestError
from control_plane.rows import user_rows
from control_plane.rows.json_codec import JsonCodec
from control_plane.services import Services
from control_plane.state.table import Conflict, Delete, Expect, Key, Put, Row, StateTable, Write
from control_plane.usecases.user_tokens import TokenRecord, extend_makers, store_token
from detcloud.shared.tokens import TOKEN_PREFIX, mint_token

CODES = user_rows.SIGN_IN_CODE.partition
_CODEC = JsonCodec(
    user_rows.SIGN_IN_CODE,
    Principal,
    {"role": Role, "makers": tuple},
    omitted=frozenset({"stored_role"}),
)
CODE_MS = 5 * 60 * 1000
SESSION_MS = 7 * 24 * 3600 * 1000
CROSS_ORIGIN_SESSION_MS = 12 * 3600 * 1000
"""The lifetime of a session of a cross-origin page, whose scripts can read the whole token."""

_SESSION_TOKEN = re.compile(rf"{TOKEN_PREFIX}[\w-]+\.{TOKEN_PREFIX}[\w-]+", re.ASCII)


@dataclass(frozen=True)
class SignInCode:
    """A code that opens a single session for the user who created the code."""

    code: str
    expires_ms: int
    """The time at which the code expires, in epoch ms."""


@dataclass(frozen=True)
class BrowserSession:
    """A session that was just opened."""

    principal: Principal
    """The user and role of the session."""
    cookie: str
    """The half of the token for the cookie."""
    key: str
    """The half of the token for the page's storage."""
    expires_ms: int
    """The time at which the session expires, in epoch ms."""

    @property
    def token(self) -> str:
        """Return the token of the session, joined from both halves."""
        return join_halves(self.cookie, self.key)


def create_sign_in_code(
    services: Services, caller: Principal, bearer: str, lasts_ms: int = CODE_MS
) -> SignInCode:
    """Store a new sign-in code for the caller, valid for `lasts_ms`; return the code.

    Only the digest of the code is stored. The code becomes useless earlier if `bearer` is revoked.

    Args:
        services: the services with the state table and the tokens.
        caller: the user who signs in.
        bearer: the caller's token.
        lasts_ms: the time for which the code is valid.

    Raises:
        RequestError: unauthenticated, if `bearer` was revoked in the meantime; conflict, if
            `bearer` is the last of a chain of MAKERS_MAX tokens, each created with the one before.
    """
    code = mint_token()
    expires_ms = services.now_ms() + lasts_ms
    makers = extend_makers(services.table, services.tokens, caller.makers, bearer)
    holder = replace(caller, makers=makers)
    key = Key(CODES, token_digest(code))
    body = _CODEC.encode(holder)
    services.table.commit((Put(key, 1, body, Expect.ABSENT, expires_ms, expires=True),))
    return SignInCode(code, expires_ms)


def open_session_by_code(
    services: Services, code: str, last_ms: int = SESSION_MS
) -> BrowserSession:
    """Store and return a new session for the user of a sign-in code, and delete the code.

    A code can be used once. Every refusal makes the same reads, so that the time of the answer does
    not reveal whether the code exists.

    Args:
        services: the services with the state table.
        code: the code.
        last_ms: the lifetime of the session. The session ends earlier with the token that created
            the code.

    Raises:
        RequestError: unauthenticated, if the code is unknown, used or expired. Also if the token
            that created the code, or a token that led to this token, was revoked. The message is
            always the same.
    """
    row, holder = _find_code(services, code)
    try:
        return _open_session(services, holder, last_ms, Delete(row.key, row.revision))
    except Conflict:
        # Another request has used the code in the meantime.
        raise _refused_code_error() from None


def create_token_by_code(
    services: Services, code: str, description: str
) -> tuple[str, TokenRecord]:
    """Store a new token for the user of a sign-in code, and delete the code; return the token.

    The token has the role of the code's user. It ends with the token that created the code, also if
    that token is revoked. A code can be used once, either here or by `open_session_by_code`.

    Args:
        services: the services with the state table.
        code: the code.
        description: the description of the new token in lists.

    Raises:
        RequestError: unauthenticated, as `open_session_by_code`; unavailable, if too many tokens
            are created at the same time.
    """
    row, holder = _find_code(services, code)
    token = mint_token()
    draft = TokenRecord(
        id=0,
        user=holder.user,
        role=holder.role,
        description=description,
        created_ms=services.now_ms(),
        expires_ms=holder.expires_ms,
        digest="",
        made_by=holder.user,
        makers=holder.makers,
    )
    try:
        record = store_token(
            services.table, draft, token, lambda _: (Delete(row.key, row.revision),)
        )
    except Conflict:
        raise _refused_code_error() from None
    return token, record


def _find_code(services: Services, code: str) -> tuple[Row, Principal]:
    """Return the row of a valid sign-in code, and the code's user.

    Every refusal makes the same reads. Raises RequestError unauthenticated, always with the same
    message, for a code that is unknown, used or expired, or whose makers were revoked.
    """
    digest = token_digest(code)
    row = services.table.get(Key(CODES, digest))
    holder = None if row is None else _CODEC.decode(row.body)
    makers = holder.makers if holder else ()
    # Without makers the code's own digest is looked up, which is the digest of no token.
    revoked = find_revoked(services.table, makers or (digest,))
    is_expired = row is None or row.due_ms is None or services.now_ms() >= row.due_ms
    if row is None or holder is None or is_expired or revoked.intersection(makers):
        raise _refused_code_error()
    return row, holder


def open_session_by_token(
    services: Services, token: str, last_ms: int = SESSION_MS
) -> BrowserSession:
    """Store and return a new session for the user of a token.

    The session ends at the latest with the token, also if the token is revoked. A token without an
    expiry or a row does not limit the session.

    Args:
        services: the services with the state table and the tokens.
        token: the token.
        last_ms: the lifetime of the session.

    Raises:
        RequestError: unauthenticated, if the token is unknown, expired or revoked; forbidden, if
            the token is not a user's; conflict, if the token is the last of a chain of MAKERS_MAX
            tokens, each created with the one before.
    """
    principal = services.tokens.find_principal(token_digest(token))
    if principal is None:
        text = "the token is unknown, has expired or was revoked"
        raise RequestError(Code.UNAUTHENTICATED, text)
    if principal.role not in USER_ROLES:
        raise RequestError(
            Code.FORBIDDEN, f"a token of the role {principal.role} cannot open a session"
        )
    makers = extend_makers(services.table, services.tokens, principal.makers, token)
    return _open_session(services, replace(principal, makers=makers), last_ms)


def is_session_token(token: str) -> bool:
    """Return whether a token has the form of a session's token: two tokens joined by a dot."""
    return _SESSION_TOKEN.fullmatch(token) is not None


def end_session(table: StateTable, token: str) -> None:
    """End a session by deleting the token's row. Do nothing if the token has no row.

    `token` is the session's whole token: the cookie's half and the page's half, joined as by
    `BrowserSession.token`.
    """
    table.commit((Delete(Key(user_rows.TOKEN.partition, token_digest(token)), Expect.ANYTHING),))


def _open_session(
    services: Services, holder: Principal, last_ms: int, *writes: Write
) -> BrowserSession:
    """Store the token of a new session for `holder`, and return the session.

    The session ends after `last_ms`, or earlier at `holder.expires_ms`. The row of the token
    expires then.

    Args:
        services: the services with the state table.
        holder: the user and role of the session, with the tokens that led to it.
        last_ms: the longest lifetime of the session.
        writes: further writes of the commit.

    Raises:
        Conflict: a condition in `writes` does not hold; nothing was stored.
    """
    ends_ms = services.now_ms() + last_ms
    expires_ms = ends_ms if holder.expires_ms is None else min(ends_ms, holder.expires_ms)
    principal = replace(holder, expires_ms=expires_ms)
    session = BrowserSession(principal, mint_token(), mint_token(), expires_ms)
    digest = token_digest(session.token)
    put = replace(token_put(digest, principal), due_ms=expires_ms, expires=True)
    services.table.commit((put, *writes))
    return session


def _refused_code_error() -> RequestError:
    """Return RequestError unauthenticated, with a constant message, for an unusable code."""
    text = (
        "the code is not known, was used or has expired; `detcloud open`, or `detcloud server code`"
        " on the server's machine, creates a new one"
    )
    return RequestError(Code.UNAUTHENTICATED, text)
