"""Routes of webhooks, which announce events to receivers outside the cluster."""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import Path, Query, Response
from pydantic import Field

from control_plane.access.ownership import FindOwned
from control_plane.access.principals import USER_ROLES
from control_plane.actors.event_routes import EventType, Route, Trigger
from control_plane.actors.projects import NAME_CHARACTERS_MAX
from control_plane.api.dependencies import IdempotencyParameter, PageParameters, ServicesParameter
from control_plane.api.owned_objects import only_own
from control_plane.api.request_body import RequestBody
from control_plane.api.responses import answer_response
from control_plane.api.route_guards import Caller, guarded_router, require_role
from control_plane.errors import invalid
from control_plane.queries.answer import Answer
from control_plane.queries.pages import Page
from control_plane.queries.webhook import (
    Delivery,
    Webhook,
    deleted_webhook_answer,
    describe_delivery,
    find_owned_webhook,
    list_deliveries,
    list_webhooks,
    load_webhook,
    webhook_answer,
)
from control_plane.services import Services
from control_plane.text_forms import text_form
from control_plane.usecases.idempotency import ExtraWrites
from control_plane.usecases.webhook_deliveries import retry_delivery, send_test
from control_plane.usecases.webhooks import (
    WebhookChange,
    WebhookRequest,
    change_webhook,
    create_webhook,
    delete_webhook,
    watch_metrics,
)
from control_plane.webhooks.records import WebhookRecord
from control_plane.webhooks.safe_addresses import URL_CHARACTERS_MAX

TRIGGERS_MAX = 20
LIST_MAX = 50

router = guarded_router("webhooks")

WebhookId = Annotated[int, Path(ge=1, lt=2**53)]
DeliveryId = Annotated[
    str,
    Path(
        pattern=text_form(
            r"^[0-9]{14}\.[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$",
            "14 digits, a dot and a UUID",
        )
    ),
]
WebhookName = Annotated[
    str,
    Field(
        pattern=text_form(
            r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}$",
            "at most 64 letters, digits and ._-, of which the first is no dot",
        )
    ),
]
ShortText = Annotated[str, Field(min_length=1, max_length=NAME_CHARACTERS_MAX)]
ExperimentNumber = Annotated[int, Field(ge=1, lt=2**53)]
TriggerType = Literal[
    "EXPERIMENT_STATE_CHANGE",
    "TRIAL_STATE_CHANGE",
    "METRIC_THRESHOLD_EXCEEDED",
    "BEST_VALIDATION",
    "TASK_LOG",
    "CUSTOM",
    "LIMIT_AT_RISK",
    "LOW_USE",
    "MODEL_VERSION",
    "ALARM",
]
State = Literal["ACTIVE", "PAUSED", "COMPLETED", "CANCELED", "ERROR", "raised", "cleared"]


FormatName = Literal["json", "slack", "teams", "discord", "pagerduty", "email", "github"]
Token = Annotated[
    str,
    Field(
        pattern=text_form(
            r"^[\x21-\x7e]{1,500}$", "at most 500 printable ASCII characters without blanks"
        )
    ),
]


class TriggerBody(RequestBody):
    """A trigger of a new webhook; docs/api.md describes the fields."""

    type: TriggerType
    states: Annotated[list[State], Field(max_length=LIST_MAX)] = []
    levels: Annotated[
        list[Literal["debug", "info", "warn", "error"]], Field(max_length=LIST_MAX)
    ] = []
    metric: Annotated[str, Field(max_length=200)] = ""
    above: Annotated[float, Field(allow_inf_nan=False)] | None = None
    below: Annotated[float, Field(allow_inf_nan=False)] | None = None
    pattern: Annotated[str, Field(max_length=300)] = ""


class WebhookBody(RequestBody):
    """The body of `POST /webhooks`; docs/api.md describes the fields."""

    name: WebhookName
    url: Annotated[str, Field(min_length=1, max_length=URL_CHARACTERS_MAX)]
    format: FormatName = "json"
    token: Token | None = None
    mode: Literal["WORKSPACE", "SPECIFIC"] = "WORKSPACE"
    triggers: Annotated[list[TriggerBody], Field(min_length=1, max_length=TRIGGERS_MAX)]
    workspace: ShortText | None = None
    project: ShortText | None = None
    labels: Annotated[list[ShortText], Field(max_length=LIST_MAX)] = []
    filtered_user: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    experiments: Annotated[list[ExperimentNumber], Field(max_length=LIST_MAX)] = []


class WebhookChangeBody(RequestBody):
    """The body of `PATCH /webhooks/{id}`; docs/api.md describes the fields."""

    name: WebhookName | None = None
    url: Annotated[str, Field(min_length=1, max_length=URL_CHARACTERS_MAX)] | None = None
    format: FormatName | None = None
    token: Token | None = None
    mode: Literal["WORKSPACE", "SPECIFIC"] | None = None
    triggers: Annotated[list[TriggerBody], Field(min_length=1, max_length=TRIGGERS_MAX)] | None = (
        None
    )
    workspace: ShortText | None = None
    project: ShortText | None = None
    labels: Annotated[list[ShortText], Field(max_length=LIST_MAX)] | None = None
    filtered_user: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    experiments: Annotated[list[ExperimentNumber], Field(max_length=LIST_MAX)] | None = None


class NewWebhook(Webhook):
    """A new webhook with the secret of signatures, which no later answer contains."""

    secret: str


class DeliveryRequest(Answer):
    """A requested delivery."""

    delivery: str


def _webhook_in_path(webhook_id: WebhookId, services: ServicesParameter) -> FindOwned:
    return partial(find_owned_webhook, services.table, webhook_id)


@router.get("/webhooks")
@require_role(*USER_ROLES)
def list_all(caller: Caller, services: ServicesParameter, page: PageParameters) -> Page[Webhook]:
    """List all webhooks, by id.

    The URL of another user's webhook ends after the host, except for admins. Error: `invalid` for
    a cursor of another list.
    """
    return list_webhooks(services.table, caller, page)


@router.get("/webhooks/{webhook_id}")
@require_role(*USER_ROLES)
def describe(webhook_id: WebhookId, caller: Caller, services: ServicesParameter) -> Webhook:
    """Return a webhook without the secret. Error: `not_found` for an unknown webhook."""
    return webhook_answer(load_webhook(services.table, webhook_id)[0], caller)


@router.post("/webhooks", status_code=201, response_model=NewWebhook)
@require_role(*USER_ROLES, changes=only_own)
def create(
    body: WebhookBody, caller: Caller, request: IdempotencyParameter, services: ServicesParameter
) -> Response:
    """Create a webhook, and return the webhook with the secret of signatures.

    A webhook of a user who is no admin has the filter `filtered_user` of the user, unless its mode
    is `SPECIFIC`. Errors: `invalid` for a URL that webhooks may not reach, and for a wrong trigger.
    `forbidden` for alarms, for another user's experiments, and for mails to domains that are not
    permitted, except for admins. `conflict` if a
    webhook has the name, or if the cluster has 50 webhooks. `unavailable` if other requests keep
    changing webhooks.
    """
    wanted = WebhookRequest(body.name, body.url, body.format, _route(body), token=body.token or "")
    store = partial(create_webhook, services.table, wanted, caller, services.now_ms())

    def describe_new(reply: int) -> NewWebhook:
        record, _ = load_webhook(services.table, reply)
        # A repeated request reaches the experiments that an interrupted request did not reach.
        watch_metrics(services, record)
        answer = webhook_answer(record, caller).model_dump()
        return NewWebhook(**answer, secret=record.secret)

    answer = request.execute(
        services, _store_id(services, store), describe_new, status=201, is_secret=True
    )
    return answer_response(answer)


@router.patch("/webhooks/{webhook_id}", response_model=Webhook)
@require_role(*USER_ROLES, changes=_webhook_in_path)
def change(
    webhook_id: WebhookId,
    body: WebhookChangeBody,
    caller: Caller,
    request: IdempotencyParameter,
    services: ServicesParameter,
) -> Response:
    """Change a webhook, and return the webhook. Fields that the body lacks keep their values.

    A filter of `null` is removed. The secret of signatures stays. Attempts after the change use the
    new URL, also for earlier events. Errors: `not_found` for an unknown webhook. `forbidden` for
    another user's webhook. Otherwise as for `POST /webhooks`.
    """
    wanted = _change_of(body)
    now_ms = services.now_ms()
    store = partial(change_webhook, services.table, webhook_id, wanted, caller, now_ms)

    def describe_changed(reply: int) -> Webhook:
        record, _ = load_webhook(services.table, reply)
        watch_metrics(services, record)
        return webhook_answer(record, caller)

    # The URL may be a secret, which the key's row must not have.
    effect = _store_id(services, store)
    return answer_response(request.execute(services, effect, describe_changed, is_secret=True))


def _store_id(
    services: Services, store: Callable[..., WebhookRecord]
) -> Callable[[ExtraWrites], object]:
    """Return an effect that stores a webhook by `store`, with the id as the reply."""

    def effect(extra_writes: ExtraWrites) -> object:
        record = store(
            lambda record: extra_writes(record.id), has_mail_service=services.has_mail_service
        )
        return record.id

    return effect


@router.delete("/webhooks/{webhook_id}", response_model=Webhook)
@require_role(*USER_ROLES, changes=_webhook_in_path)
def delete(
    webhook_id: WebhookId,
    caller: Caller,
    request: IdempotencyParameter,
    services: ServicesParameter,
) -> Response:
    """Delete a webhook, and return the deleted webhook. Waiting deliveries are dropped.

    The URL of the answer ends after the host.

    Errors: `not_found` for an unknown webhook. `forbidden` for another user's webhook.
    `unavailable` if other requests keep changing webhooks.
    """
    now_ms = services.now_ms()

    def effect(extra_writes: ExtraWrites) -> object:
        record = delete_webhook(
            services.table,
            webhook_id,
            caller,
            now_ms,
            lambda record: extra_writes(deleted_webhook_answer(record, caller).model_dump()),
        )
        return deleted_webhook_answer(record, caller).model_dump()

    return answer_response(request.execute(services, effect, _webhook_from_reply))


@router.post("/webhooks/{webhook_id}/test", status_code=202, response_model=DeliveryRequest)
@require_role(*USER_ROLES, changes=_webhook_in_path)
def test(
    webhook_id: WebhookId,
    caller: Caller,
    request: IdempotencyParameter,
    services: ServicesParameter,
) -> Response:
    """Send a test event to a webhook, and return the id of the delivery.

    Errors: `not_found` for an unknown webhook. `forbidden` for another user's webhook.
    """
    answer = request.execute(
        services,
        lambda extra_writes: send_test(
            services.table, webhook_id, caller.user, services.now_ms(), extra_writes
        ),
        _request_answer,
        status=202,
    )
    return answer_response(answer)


@router.get("/webhooks/{webhook_id}/deliveries")
@require_role(*USER_ROLES)
def deliveries(
    webhook_id: WebhookId,
    caller: Caller,
    services: ServicesParameter,
    page: PageParameters,
    state: Annotated[Literal["waiting", "delivered", "failed"] | None, Query()] = None,
) -> Page[Delivery]:
    """List the deliveries to a webhook, from the newest event to the oldest.

    An event appears after the first attempt. Errors: `not_found` for an unknown webhook.
    `forbidden` for another user's webhook. `invalid` for a cursor of another list.
    """
    return list_deliveries(services.table, webhook_id, caller, page, state)


@router.get("/webhooks/{webhook_id}/deliveries/{delivery_id}")
@require_role(*USER_ROLES)
def delivery(
    webhook_id: WebhookId, delivery_id: DeliveryId, caller: Caller, services: ServicesParameter
) -> Delivery:
    """Return a delivery to a webhook.

    Errors: `not_found` for an unknown webhook or delivery. `forbidden` for another user's webhook.
    """
    return describe_delivery(services.table, webhook_id, delivery_id, caller)


@router.post(
    "/webhooks/{webhook_id}/deliveries/{delivery_id}/retry",
    status_code=202,
    response_model=DeliveryRequest,
)
@require_role(*USER_ROLES, changes=_webhook_in_path)
def retry(
    webhook_id: WebhookId,
    delivery_id: DeliveryId,
    request: IdempotencyParameter,
    services: ServicesParameter,
) -> Response:
    """Deliver an event again, also after a success, or at once instead of later.

    Errors: `not_found` for an unknown webhook or delivery. `forbidden` for another user's webhook.
    `conflict` for an event that was replaced by a restore. `unavailable` if other requests keep
    changing the event.
    """
    answer = request.execute(
        services,
        lambda extra_writes: retry_delivery(
            services.table, webhook_id, delivery_id, services.now_ms(), extra_writes
        ),
        _request_answer,
        status=202,
    )
    return answer_response(answer)


def _triggers(bodies: list[TriggerBody]) -> tuple[Trigger, ...]:
    return tuple(
        Trigger(
            EventType(trigger.type),
            tuple(trigger.states),
            tuple(trigger.levels),
            trigger.metric,
            trigger.above,
            trigger.below,
            trigger.pattern,
        )
        for trigger in bodies
    )


def _change_of(body: WebhookChangeBody) -> WebhookChange:
    """Return the change that a body requests. A field of `null` that is no filter is refused."""
    given = {name: getattr(body, name) for name in body.model_fields_set}
    for name in given.keys() - _FILTERS:
        if given[name] is None:
            raise invalid(name, "must not be null", "leave the field out to keep the value")
    route = {_FILTERS[name]: given[name] for name in given.keys() & _FILTERS.keys()}
    if "name" in given:
        route["name"] = given["name"]
    if "mode" in given:
        route["is_specific"] = given["mode"] == "SPECIFIC"
    if "triggers" in given:
        route["triggers"] = _triggers(given["triggers"])
    for name in ("labels", "experiments"):
        if name in given:
            route[name] = tuple(given[name] or ())
    record: dict[str, str] = {
        name: given[name] for name in ("url", "format", "token") if name in given
    }
    return WebhookChange(record, route)


_FILTERS = {
    "workspace": "workspace",
    "project": "project",
    "labels": "labels",
    "filtered_user": "user",
    "experiments": "experiments",
}
"""The fields of routes by the filters of bodies, which may be `null`."""


def _route(body: WebhookBody) -> Route:
    return Route(
        webhook=0,
        name=body.name,
        triggers=_triggers(body.triggers),
        is_specific=body.mode == "SPECIFIC",
        workspace=body.workspace,
        project=body.project,
        labels=tuple(body.labels),
        user=body.filtered_user,
        experiments=tuple(body.experiments),
    )


def _request_answer(reply: str) -> DeliveryRequest:
    return DeliveryRequest(delivery=reply)


def _webhook_from_reply(reply: dict[str, Any]) -> Webhook:
    return Webhook(**reply)
