"""The rows of webhooks: the settings, the events to announce, and the deliveries."""

from control_plane.rows.row_type import RowType

WEBHOOK = RowType(
    name="webhook",
    key="webhooks / WEBHOOK",
    meaning="A webhook: the receiver, the triggers and filters, and the key of signatures.",
    record="control_plane.webhooks.records:WebhookRecord",
    writers=("usecases.webhooks",),
    readers=("webhooks.deliverer", "queries.webhook", "usecases.webhooks"),
    secret_fields=("url", "secret", "token"),
    is_mutable=True,
)
ROUTES = RowType(
    name="webhook routes",
    key="webhook-routes / all",
    meaning="The triggers and filters of all webhooks, which a commit with an event reads.",
    fields={"routes": "the route of each webhook (actors/event_routes.py)"},
    writers=("usecases.webhooks",),
    readers=("actors.event_routes", "webhooks.event_writes"),
)
EVENT = RowType(
    name="event",
    key="events#SUBJECT / NUMBER",
    meaning="An event that webhooks have not delivered yet. NUMBER orders the subject's events.",
    record="control_plane.actors.events:EventRow",
    writers=(
        "actors.events",
        "webhooks.event_writes",
        "webhooks.deliverer",
        "usecases.webhook_deliveries",
        "engine.due_index",
    ),
    readers=("webhooks.deliverer", "usecases.webhook_deliveries", "engine.due_index"),
    due="5 s after the event, then at the next attempt of a delivery",
    wakes=("tick",),
    is_mutable=True,
    is_passing=True,
)
DELIVERY = RowType(
    name="delivery",
    key="webhook-deliveries#WEBHOOK / TIME.EVENT",
    meaning="The deliveries of an event to a webhook. TIME is the time of the event.",
    record="control_plane.webhooks.records:DeliveryRecord",
    writers=("webhooks.deliverer", "usecases.webhook_deliveries"),
    readers=("queries.webhook", "usecases.webhook_deliveries"),
    expiry="7 days after the last attempt, 30 days if the event was never delivered",
)

ROW_TYPES = (WEBHOOK, ROUTES, EVENT, DELIVERY)
