"""Routes of templates, which are parts of configurations for experiments to complete."""

from functools import partial
from typing import Annotated, Any

from fastapi import Path, Response
from pydantic import Field

from control_plane.access.ownership import FindOwned
from control_plane.access.principals import USER_ROLES, Principal
from control_plane.api.dependencies import IdempotencyParameter, PageParameters, ServicesParameter
from control_plane.api.request_body import RequestBody
from control_plane.api.responses import answer_response
from control_plane.api.route_guards import Caller, guarded_router, require_role
from control_plane.config.problems import ConfigInvalid
from control_plane.errors import Code, RequestError
from control_plane.queries.answer import Answer
from control_plane.queries.pages import Page, PageRequest
from control_plane.queries.row_pages import read_row_page
from control_plane.text_forms import text_form
from control_plane.usecases.config_errors import config_error
from control_plane.usecases.idempotency import ExtraWrites
from control_plane.usecases.templates import (
    BYTES_MAX,
    TEMPLATES,
    TemplateRecord,
    decode_template,
    delete_template,
    find_owned_template,
    load_template,
    missing_template_error,
    put_template,
)

# The most items of a page, because each template may be long.
PAGE_MAX = 50

router = guarded_router("templates")

# No name begins with a dot, because clients would read `..` in a path as the parent folder.
TemplateName = Annotated[
    str,
    Path(
        pattern=text_form(
            r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}$",
            "at most 64 letters, digits and ._-, of which the first is no dot",
        )
    ),
]


def _template_in_path(name: TemplateName, services: ServicesParameter) -> FindOwned:
    return partial(find_owned_template, services.table, name)


class TemplateBody(RequestBody):
    """The body of `PUT /templates/{name}`.

    With `expected_updated_ms`, the template must have this `updated_ms`, or must not exist for 0.
    """

    config: Annotated[str, Field(max_length=BYTES_MAX)]
    expected_updated_ms: Annotated[int, Field(ge=0, lt=2**53)] | None = None


class Template(Answer):
    """A template. The secrets in another user's template are masked, except for admins."""

    name: str
    config: str
    created_ms: int
    updated_ms: int
    user: str


@router.get("/templates")
@require_role(*USER_ROLES)
def list_templates(
    caller: Caller, services: ServicesParameter, page: PageParameters
) -> Page[Template]:
    short_page = PageRequest(min(page.limit, PAGE_MAX), page.cursor)
    rows, cursor = read_row_page(services.table, TEMPLATES, short_page)
    items = [_template_answer(decode_template(row.body), caller) for row in rows]
    return Page(items=items, next_cursor=cursor)


@router.get("/templates/{name}")
@require_role(*USER_ROLES)
def describe(name: TemplateName, caller: Caller, services: ServicesParameter) -> Template:
    record = load_template(services.table, name)
    if record is None:
        raise missing_template_error(name)
    return _template_answer(record, caller)


@router.put("/templates/{name}", response_model=Template)
@require_role(*USER_ROLES, changes=_template_in_path)
def put(
    name: TemplateName,
    body: TemplateBody,
    caller: Caller,
    request: IdempotencyParameter,
    services: ServicesParameter,
) -> Response:
    """Create a template, or replace the text of a template, and return the template.

    The owner and the time of creation stay. The same text again keeps `updated_ms`. Errors:
    `forbidden` for another user's template. `invalid` if the text is not a part of a configuration,
    or has masks in place of secrets. `too_large` for more than 48 KiB.
    `conflict` if the template was not last changed at `expected_updated_ms`. `unavailable` if other
    requests keep changing the template.
    """
    if len(body.config.encode()) > BYTES_MAX:
        raise RequestError(Code.TOO_LARGE, f"a template has at most {BYTES_MAX} bytes")
    now_ms = services.now_ms()
    template = TemplateRecord(name, body.config, "", now_ms, now_ms, caller.user)

    def effect(extra_writes: ExtraWrites) -> object:
        record = put_template(
            services.table,
            template,
            caller,
            lambda record: extra_writes(_reply(record, caller)),
            expected_updated_ms=body.expected_updated_ms,
        )
        return _reply(record, caller)

    try:
        answer = request.execute(services, effect, _answer_from_reply)
        return answer_response(answer)
    except ConfigInvalid as error:
        raise config_error(error, "the template is not valid") from None


@router.delete("/templates/{name}", response_model=Template)
@require_role(*USER_ROLES, changes=_template_in_path)
def delete(
    name: TemplateName, caller: Caller, request: IdempotencyParameter, services: ServicesParameter
) -> Response:
    """Delete a template, and return the deleted template.

    Experiments that were created with the template keep the configuration. Errors: `not_found` for
    an unknown template. `forbidden` for another user's template. `unavailable` if other requests
    keep changing the template.
    """

    def effect(extra_writes: ExtraWrites) -> object:
        record = delete_template(
            services.table,
            name,
            caller,
            lambda record: extra_writes(_reply(record, caller)),
        )
        return _reply(record, caller)

    answer = request.execute(services, effect, _answer_from_reply)
    return answer_response(answer)


def _reply(record: TemplateRecord, caller: Principal) -> dict[str, Any]:
    return _template_answer(record, caller).model_dump()


def _answer_from_reply(reply: dict[str, Any]) -> Template:
    return Template(**reply)


def _template_answer(record: TemplateRecord, caller: Principal) -> Template:
    return Template(
        name=record.name,
        config=record.text_for(caller),
        created_ms=record.created_ms,
        updated_ms=record.updated_ms,
        user=record.user,
    )
