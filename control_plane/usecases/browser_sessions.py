"""Sign-in of browsers: one-time codes, and the sessions that they or a token open.

A session is a token in two halves, of which a browser keeps one in a cookie that no script reads
and the other in the storage of the page's own origin. Neither is anything without the other.
"""

import json
import re
from dataclasses import asdict, dataclass, replace
from typing import Any

from control_plane.access.principals import USER_ROLES, Principal, Role
from control_plane.access.tokens import find_revoked, join_halves, token_digest, token_put
from control_plane.actors.agent.token_rows import TOKENS
from control_plane.errors import Code, RequestError
from control_plane.services import Services
from control_plane.state.table import Conflict, Delete, Expect, Key, Put, StateTable, Write
from control_plane.usecases.user_tokens import extend_makers
from detcloud.shared.tokens import TOKEN_PREFIX, mint_token

CODES = "sign-in-codes"
CODE_MS = 5 * 60 * 1000
SESSION_MS = 7 * 24 * 3600 * 1000
CROSS_ORIGIN_SESSION_MS = 12 * 3600 * 1000
"""The lifetime of a session of a cross-origin page, whose scripts hold the whole token."""

_SESSION_TOKEN = re.compile(rf"{TOKEN_PREFIX}[\w-]+\.{TOKEN_PREFIX}[\w-]+", re.ASCII)


@dataclass(frozen=True)
class SignInCode:
    """A code that opens one session for the user who made it, once and until `expires_ms`."""

    code: str
    expires_ms: int


@dataclass(frozen=True)
class BrowserSession:
    """A session that was just opened, with its two halves."""

    principal: Principal
    cookie: str
    key: str
    expires_ms: int

    @property
    def token(self) -> str:
        """Both halves."""
        return join_halves(self.cookie, self.key)


def create_sign_in_code(services: Services, caller: Principal, bearer: str) -> SignInCode:
    """Make a code for the caller, whose token is `bearer`. Only its digest is stored.

    Raises:
        RequestError: conflict, for a token that was made by too many others.
    """
    code = mint_token()
    expires_ms = services.now_ms() + CODE_MS
    holder = replace(caller, makers=extend_makers(services.table, caller.makers, bearer))
    key = Key(CODES, token_digest(code))
    body = json.dumps(asdict(holder)).encode()
    services.table.commit((Put(key, 1, body, Expect.ABSENT, expires_ms, expires=True),))
    return SignInCode(code, expires_ms)


def open_session_by_code(
    services: Services, code: str, last_ms: int = SESSION_MS
) -> BrowserSession:
    """Open a session of `last_ms` with a code, which is used up by it.

    Raises:
        RequestError: unauthenticated, in the same words whether the code is unknown, used or
            expired, or the token that made it has ended.
    """
    row = services.table.get(Key(CODES, token_digest(code)))
    if row is None or row.due_ms is None or services.now_ms() >= row.due_ms:
        raise _refused_code_error()
    holder = _decode_principal(json.loads(row.body))
    if find_revoked(services.table, holder.makers):
        raise _refused_code_error()
    try:
        return _open_session(services, holder, last_ms, Delete(row.key, row.revision))
    except Conflict:
        # Another request has used it meanwhile.
        raise _refused_code_error() from None


def open_session_by_token(
    services: Services, token: str, last_ms: int = SESSION_MS
) -> BrowserSession:
    """Open a session of `last_ms` with a user's token, with which it ends.

    Raises:
        RequestError: unauthenticated, for a token that is not known or has ended; forbidden, for
            one of an agent; conflict, for one that was made by too many others.
    """
    principal = services.tokens.find_principal(token_digest(token))
    if principal is None:
        text = "the token is unknown, has expired or was revoked"
        raise RequestError(Code.UNAUTHENTICATED, text)
    if principal.role not in USER_ROLES:
        raise RequestError(
            Code.FORBIDDEN, f"a token of the role {principal.role} cannot open a session"
        )
    makers = extend_makers(services.table, principal.makers, token)
    return _open_session(services, replace(principal, makers=makers), last_ms)


def is_session_token(token: str) -> bool:
    """Whether a token is one of a session, by its form."""
    return _SESSION_TOKEN.fullmatch(token) is not None


def end_session(table: StateTable, token: str) -> None:
    """End the session whose halves joined are `token`."""
    table.commit((Delete(Key(TOKENS, token_digest(token)), Expect.ANYTHING),))


def _open_session(
    services: Services, holder: Principal, last_ms: int, *writes: Write
) -> BrowserSession:
    ends_ms = services.now_ms() + last_ms
    expires_ms = ends_ms if holder.expires_ms is None else min(ends_ms, holder.expires_ms)
    principal = replace(holder, expires_ms=expires_ms)
    session = BrowserSession(principal, mint_token(), mint_token(), expires_ms)
    digest = token_digest(session.token)
    put = replace(token_put(digest, principal), due_ms=expires_ms, expires=True)
    services.table.commit((put, *writes))
    return session


def _decode_principal(fields: dict[str, Any]) -> Principal:
    return Principal(**{**fields, "role": Role(fields["role"]), "makers": tuple(fields["makers"])})


def _refused_code_error() -> RequestError:
    text = "the code is not known, was used or has expired; `detcloud open` creates a new one"
    return RequestError(Code.UNAUTHENTICATED, text)
