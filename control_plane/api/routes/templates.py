"""Templates: parts of configurations that experiments may be laid over."""

from typing import Annotated, Any

from fastapi import Path, Response
from pydantic import Field

from control_plane.api.auth import Principal, Role
from control_plane.api.bodies import Body, RequestBody
from control_plane.api.errors import ApiError, Code
from control_plane.api.guarded import PEOPLE, Caller, guarded_router, needs
from control_plane.api.idempotency import AskedOnce, Beside
from control_plane.api.pages import Page, PageAsked, PageParameters
from control_plane.api.services import Given
from control_plane.api.submission import config_invalid
from control_plane.api.template_store import (
    BYTES_MAX,
    TEMPLATES,
    Stored,
    delete_template,
    no_template,
    put_template,
    read_template_row,
    stored_template,
)
from control_plane.api.views.rows import scanned
from control_plane.config import ConfigInvalid

# Each may be long.
PAGE_MAX = 50

router = guarded_router("templates")

# None begins with a dot: a client would take `..` for the way up.
TemplateName = Annotated[str, Path(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}$")]


class Asked(RequestBody):
    """The body of `PUT /templates/{name}`."""

    config: Annotated[str, Field(max_length=BYTES_MAX)]


class Template(Body):
    """See docs/api.md."""

    name: str
    config: str
    created_ms: int
    updated_ms: int
    user: str


@router.get("/templates")
@needs(*PEOPLE)
def list_templates(caller: Caller, services: Given, asked: PageParameters) -> Page[Template]:
    page = PageAsked(min(asked.limit, PAGE_MAX), asked.cursor)
    rows, cursor = scanned(services.table, TEMPLATES, page)
    items = [_shown(read_template_row(row.body), caller) for row in rows]
    return Page(items=items, next_cursor=cursor)


@router.get("/templates/{name}")
@needs(*PEOPLE)
def describe(name: TemplateName, caller: Caller, services: Given) -> Template:
    stored = stored_template(services.table, name)
    if stored is None:
        raise no_template(name)
    return _shown(stored, caller)


@router.put("/templates/{name}", response_model=Template)
@needs(*PEOPLE)
def put(
    name: TemplateName, asked: Asked, caller: Caller, once: AskedOnce, services: Given
) -> Response:
    if len(asked.config.encode()) > BYTES_MAX:
        raise ApiError(Code.TOO_LARGE, f"a template has at most {BYTES_MAX} bytes")
    now_ms = services.now_ms()
    wanted = Stored(name, asked.config, "", now_ms, now_ms, caller.user)
    is_admin = caller.role is Role.ADMIN

    def effect(beside: Beside) -> object:
        stored = put_template(
            services.table, wanted, is_admin, lambda stored: beside(_reply(stored, caller))
        )
        return _reply(stored, caller)

    try:
        return once.carried_out(services, effect, _described)
    except ConfigInvalid as error:
        raise config_invalid(error, "the template is not valid") from None


@router.delete("/templates/{name}", response_model=Template)
@needs(*PEOPLE)
def delete(name: TemplateName, caller: Caller, once: AskedOnce, services: Given) -> Response:
    """Experiments that were made with it keep what they took of it."""

    def effect(beside: Beside) -> object:
        stored = delete_template(
            services.table,
            name,
            caller.user,
            caller.role is Role.ADMIN,
            lambda stored: beside(_reply(stored, caller)),
        )
        return _reply(stored, caller)

    return once.carried_out(services, effect, _described)


def _reply(stored: Stored, caller: Principal) -> dict[str, Any]:
    return _shown(stored, caller).model_dump()


def _described(reply: dict[str, Any]) -> Template:
    return Template(**reply)


def _shown(stored: Stored, caller: Principal) -> Template:
    return Template(
        name=stored.name,
        config=stored.text_for(caller.user, caller.role is Role.ADMIN),
        created_ms=stored.created_ms,
        updated_ms=stored.updated_ms,
        user=stored.user,
    )
