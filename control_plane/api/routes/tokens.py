"""Routes of users' tokens: create, list without the secret, revoke."""

from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import Path, Request, Response
from pydantic import Field

from control_plane.access.ownership import FindOwned
from control_plane.access.principals import USER_ROLES, Role
from control_plane.api.authentication import request_token
from control_plane.api.dependencies import IdempotencyParameter, PageParameters, ServicesParameter
from control_plane.api.owned_objects import only_own
from control_plane.api.request_body import RequestBody
from control_plane.api.responses import answer_response
from control_plane.api.route_guards import Caller, guarded_router, require_role
from control_plane.errors import Code, RequestError
from control_plane.queries.answer import Answer
from control_plane.queries.pages import Page
from control_plane.queries.row_pages import read_row_page
from control_plane.services import Services
from control_plane.state.table import Row
from control_plane.text_forms import text_form
from control_plane.usecases.user_tokens import (
    RECORDS,
    MintedToken,
    TokenRecord,
    TokenRequest,
    create_token,
    decode_record,
    decrypt_token,
    draft_record,
    find_ended,
    find_owned_token,
    load_record,
    revoke_token,
)

USER_NAME = text_form(
    r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$",
    "at most 64 letters, digits and ._@-, of which the first is a letter or a digit",
)

router = guarded_router("tokens")

TokenId = Annotated[int, Path(ge=1, le=10**12 - 1)]


def _token_in_path(token_id: TokenId, services: ServicesParameter) -> FindOwned:
    return partial(find_owned_token, services.table, token_id)


class TokenBody(RequestBody):
    """The body of `POST /tokens`; docs/api.md describes the fields."""

    user: Annotated[str, Field(pattern=USER_NAME)] | None = None
    role: Literal["user", "admin", "join", "metrics"] = "user"
    resource_pool: Annotated[str, Field(max_length=100)] | None = None
    description: Annotated[str, Field(max_length=200)] = ""
    expires_days: Annotated[int, Field(ge=1, le=365)] | None = None
    expires_minutes: Annotated[int, Field(ge=1, le=365 * 24 * 60)] | None = None
    once: bool = False


class Token(Answer):
    """A token without the secret; docs/api.md describes the fields."""

    id: int
    user: str
    role: Role
    description: str
    created_ms: int
    expires_ms: int | None
    revoked: bool
    resource_pool: str | None
    once: bool
    used_by: str | None


class NewToken(Token):
    """A new token with the secret, which no later answer contains."""

    token: str


@router.get("/tokens")
@require_role(*USER_ROLES)
def list_tokens(caller: Caller, services: ServicesParameter, page: PageParameters) -> Page[Token]:
    """List the caller's tokens, or the tokens of all users for an admin, newest first.

    The secrets are not listed. A page may be short or empty although `next_cursor` is set. Error:
    `invalid` for a cursor of another list.
    """

    def is_shown(row: Row) -> bool:
        return caller.role is Role.ADMIN or decode_record(row.body).user == caller.user

    rows, cursor = read_row_page(services.table, RECORDS, page, descending=True, is_wanted=is_shown)
    records = [decode_record(row.body) for row in rows]
    ended = find_ended(services.table, records)
    items = [Token(**_fields(record, record.id in ended)) for record in records]
    return Page(items=items, next_cursor=cursor)


@router.post("/tokens", status_code=201, response_model=NewToken)
@require_role(*USER_ROLES, changes=only_own)
def create(
    body: TokenBody,
    caller: Caller,
    request: IdempotencyParameter,
    services: ServicesParameter,
    http_request: Request,
) -> Response:
    """Create a token, and return the token with the secret.

    The token ends no later than the caller's token. Revoking the caller's token also revokes the
    new token. A repetition with the same Idempotency-Key creates no second token and gets the same
    secret, but only with the same token of the caller. Only admins create tokens for other users,
    of the role `admin`, and join tokens. Errors: `forbidden` for a token that the caller may not
    create. `invalid` for a join token without a pool, another token with a pool or with `once`, and
    for two lifetimes. `not_found` for
    an unknown pool. `conflict` if the caller's token was created through too many other tokens, or
    if the caller repeats the request with another token. `unavailable` if too many tokens are
    created at the same time.
    """
    token_request = TokenRequest(
        user=body.user,
        role=Role(body.role),
        resource_pool=body.resource_pool,
        description=body.description,
        expires_days=body.expires_days,
        expires_minutes=body.expires_minutes,
        once=body.once,
    )
    draft = draft_record(services, token_request, caller)
    bearer = request_token(http_request, services.cluster_id)

    def describe_new_token(reply: dict[str, Any]) -> NewToken:
        minted = MintedToken(**reply)
        record = load_record(services.table, minted.id)
        token = decrypt_token(minted, record, bearer)
        if token is None:
            text = (
                f"token {record.id} was created with another of your tokens and was shown only then"
            )
            raise RequestError(Code.CONFLICT, text)
        return NewToken(**_fields(record, _is_ended(services, record)), token=token)

    answer = request.execute(
        services,
        lambda extra_writes: asdict(
            create_token(services.table, services.tokens, draft, bearer, extra_writes)
        ),
        describe_new_token,
        status=201,
        is_secret=True,
    )
    return answer_response(answer)


@router.delete("/tokens/{token_id}", response_model=Token)
@require_role(*USER_ROLES, changes=_token_in_path)
def delete(
    token_id: TokenId, caller: Caller, request: IdempotencyParameter, services: ServicesParameter
) -> Response:
    """Revoke a token, and all tokens that were created with the token; return the token.

    The record of the token stays in the list. Revoking a revoked token changes nothing. Errors:
    `not_found` for an unknown token. `forbidden` for another user's token. `unavailable` if other
    requests keep changing the token.
    """

    def describe_token(reply: int) -> Token:
        record = load_record(services.table, reply)
        return Token(**_fields(record, _is_ended(services, record)))

    answer = request.execute(
        services,
        lambda extra_writes: revoke_token(services.table, token_id, caller.user, extra_writes),
        describe_token,
    )
    return answer_response(answer)


def _is_ended(services: Services, record: TokenRecord) -> bool:
    return record.id in find_ended(services.table, [record])


def _fields(record: TokenRecord, is_ended: bool) -> dict[str, Any]:
    return {
        "id": record.id,
        "user": record.user,
        "role": record.role,
        "description": record.description,
        "created_ms": record.created_ms,
        "expires_ms": record.expires_ms,
        "revoked": is_ended,
        "resource_pool": record.subject or None,
        "once": record.once,
        "used_by": record.used_by or None,
    }
