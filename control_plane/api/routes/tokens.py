"""Tokens of people: made, listed without the secret, revoked."""

from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import Path, Request, Response
from pydantic import Field

from control_plane.api.auth import Principal, Role, bearer_of
from control_plane.api.bodies import Body, RequestBody
from control_plane.api.errors import ApiError, Code, invalid
from control_plane.api.guarded import PEOPLE, Caller, guarded_router, needs
from control_plane.api.idempotency import AskedOnce
from control_plane.api.pages import Page, PageParameters
from control_plane.api.services import Given, Services
from control_plane.api.token_entries import (
    ENTRIES,
    Entry,
    Minted,
    entry_of,
    mint,
    opened,
    read_entry,
    revoke,
)
from control_plane.api.views import pool as pools
from control_plane.api.views.rows import scanned

USER_NAME = r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$"
DAY_MS = 24 * 3600 * 1000

router = guarded_router("tokens")

TokenId = Annotated[int, Path(ge=1, le=10**12 - 1)]


class Asked(RequestBody):
    """The body of `POST /tokens`."""

    user: Annotated[str, Field(pattern=USER_NAME)] | None = None
    role: Literal["user", "admin", "join"] = "user"
    resource_pool: Annotated[str, Field(max_length=100)] | None = None
    description: Annotated[str, Field(max_length=200)] = ""
    expires_days: Annotated[int, Field(ge=1, le=365)] | None = None


class Token(Body):
    """See docs/api.md."""

    id: int
    user: str
    role: Role
    description: str
    created_ms: int
    expires_ms: int | None
    revoked: bool
    resource_pool: str | None


class NewToken(Token):
    """With the token itself."""

    token: str


@router.get("/tokens")
@needs(*PEOPLE)
def list_tokens(caller: Caller, services: Given, asked: PageParameters) -> Page[Token]:
    """Newest first."""

    def is_shown(entry: Entry) -> bool:
        return caller.role is Role.ADMIN or entry.user == caller.user

    rows, cursor = scanned(
        services.table,
        ENTRIES,
        asked,
        descending=True,
        wanted=lambda row: is_shown(read_entry(row.body)),
    )
    items = [Token(**_fields(read_entry(row.body))) for row in rows]
    return Page(items=items, next_cursor=cursor)


@router.post("/tokens", status_code=201, response_model=NewToken)
@needs(*PEOPLE)
def create(
    asked: Asked, caller: Caller, once: AskedOnce, services: Given, request: Request
) -> Response:
    entry = _asked_for(asked, caller, services)
    bearer = bearer_of(request.headers.get("authorization"))

    def described(reply: dict[str, Any]) -> NewToken:
        minted = Minted(**reply)
        made = entry_of(services.table, minted.id)
        token = opened(minted, made, bearer)
        if token is None:
            text = f"token {made.id} was made with another token of yours, and shown only there"
            raise ApiError(Code.CONFLICT, text)
        return NewToken(**_fields(made), token=token)

    return once.carried_out(
        services,
        lambda beside: asdict(mint(services.table, entry, bearer, beside)),
        described,
        status=201,
        is_secret=True,
    )


@router.delete("/tokens/{token_id}", response_model=Token)
@needs(*PEOPLE)
def delete(token_id: TokenId, caller: Caller, once: AskedOnce, services: Given) -> Response:
    known = entry_of(services.table, token_id)
    if caller.role is not Role.ADMIN and known.user != caller.user:
        text = f"token {token_id} is not yours; an admin can revoke it"
        raise ApiError(Code.FORBIDDEN, text)
    return once.carried_out(
        services,
        lambda beside: revoke(services.table, token_id, caller.user, beside),
        lambda reply: Token(**_fields(entry_of(services.table, reply))),
    )


def _check_join(asked: Asked, caller: Principal, services: Services) -> None:
    """Whether it says which agents it is for, and no more."""
    if (asked.role == Role.JOIN.value) is (asked.resource_pool is None):
        raise invalid("resource_pool", "is for tokens of the role join, which need one")
    if asked.resource_pool is None:
        return
    if caller.role is not Role.ADMIN:
        raise ApiError(Code.FORBIDDEN, "only an admin may make a token that lets agents join")
    pools.existing(services, asked.resource_pool)


def _asked_for(asked: Asked, caller: Principal, services: Services) -> Entry:
    """The entry of a token that the caller may make. It does not outlive the caller's own."""
    user = caller.user if asked.user is None else asked.user
    if caller.role is not Role.ADMIN and user != caller.user:
        raise ApiError(Code.FORBIDDEN, f"only an admin may make a token for {user}")
    if caller.role is not Role.ADMIN and Role(asked.role) is Role.ADMIN:
        raise ApiError(Code.FORBIDDEN, "only an admin may make a token of the role admin")
    _check_join(asked, caller, services)
    days, now_ms = asked.expires_days, services.now_ms()
    ends = [] if days is None else [now_ms + days * DAY_MS]
    ends += [] if caller.expires_ms is None else [caller.expires_ms]
    return Entry(
        id=0,
        user=user,
        role=Role(asked.role),
        description=asked.description,
        created_ms=now_ms,
        expires_ms=min(ends, default=None),
        digest="",
        made_by=caller.user,
        subject=asked.resource_pool or "",
    )


def _fields(entry: Entry) -> dict[str, Any]:
    return {
        "id": entry.id,
        "user": entry.user,
        "role": entry.role,
        "description": entry.description,
        "created_ms": entry.created_ms,
        "expires_ms": entry.expires_ms,
        "revoked": entry.revoked_by is not None,
        "resource_pool": entry.subject or None,
    }
