"""Routes: the triggers and filters that select the webhooks of an event.

The routes of all webhooks are in a single row. A commit with an event reads this row.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any, NamedTuple

from control_plane.actors.step import StepContext
from control_plane.rows import webhook_rows

ROUTES = webhook_rows.ROUTES.only_key
"""The partition and the sort key of the row with all routes."""
DAMAGED = (
    "some webhooks announce nothing, because the row webhook-routes is damaged; change or create a"
    " webhook to repair the row"
)
"""The reason in the journal of a step that read a damaged row of routes."""


class EventType(StrEnum):
    """The type of an event. The first four names are those of Determined's triggers."""

    EXPERIMENT_STATE_CHANGE = "EXPERIMENT_STATE_CHANGE"
    METRIC_THRESHOLD_EXCEEDED = "METRIC_THRESHOLD_EXCEEDED"
    TASK_LOG = "TASK_LOG"
    CUSTOM = "CUSTOM"
    """An alert of training code."""
    TRIAL_STATE_CHANGE = "TRIAL_STATE_CHANGE"
    BEST_VALIDATION = "BEST_VALIDATION"
    LIMIT_AT_RISK = "LIMIT_AT_RISK"
    """An experiment has nearly reached its `max_cost`, or will miss its deadline."""
    LOW_USE = "LOW_USE"
    """The slots of a trial have computed too little."""
    MODEL_VERSION = "MODEL_VERSION"
    ALARM = "ALARM"
    TEST = "TEST"
    """A test that a user requested. No trigger has this type."""


@dataclass(frozen=True, slots=True)
class Trigger:
    """A condition on events. An empty field accepts every value."""

    type: str
    """The value of an EventType, or of a type that a newer release defines."""
    states: tuple[str, ...] = ()
    """The states of state changes, `raised` or `cleared` for alarms."""
    levels: tuple[str, ...] = ()
    """The levels of alerts."""
    metric: str = ""
    """The name of the metric, for METRIC_THRESHOLD_EXCEEDED."""
    above: float | None = None
    """The value that the metric must exceed. None: no such limit."""
    below: float | None = None
    """The value below which the metric must fall. None: no such limit."""
    pattern: str = ""
    """The regular expression of log lines, for TASK_LOG."""


@dataclass(frozen=True, slots=True)
class Route:
    """The triggers and filters of a webhook. A filter of None or () accepts everything."""

    webhook: int
    """The id of the webhook."""
    name: str
    """The name of the webhook."""
    triggers: tuple[Trigger, ...]
    is_specific: bool = False
    """Whether only experiments whose configuration names the webhook match."""
    workspace: str | None = None
    project: str | None = None
    labels: tuple[str, ...] = ()
    """The labels of which an experiment must have one."""
    user: str | None = None
    """The owner of the experiment, or the user who registered the model version."""
    experiments: tuple[int, ...] = ()
    """The ids of experiments."""
    edits: int = 0
    """The number of changes of the triggers. An experiment announces crossed limits again after a
    change.
    """


class DecodedRoutes(NamedTuple):
    """The routes of a row."""

    routes: tuple[Route, ...]
    damaged: int
    """The number of routes that were left out, at least 1 for a row without readable routes."""


@dataclass(frozen=True, slots=True)
class WebhookChoice:
    """The section `integrations.webhook` of an experiment's configuration."""

    ids: tuple[int, ...] = ()
    """The ids of webhooks that the experiment names."""
    names: tuple[str, ...] = ()
    """The names of webhooks that the experiment names."""
    exclude: bool = False
    """Whether no webhook announces the experiment."""


@dataclass(frozen=True, slots=True)
class EventScope:
    """The values of an event that the filters of routes compare."""

    workspace: str | None = None
    """The workspace of the experiment. None for events without an experiment."""
    project: str | None = None
    labels: tuple[str, ...] = ()
    user: str | None = None
    """The owner of the experiment or model version. None for events without a user."""
    experiment_id: int | None = None
    choice: WebhookChoice = field(default_factory=WebhookChoice)
    """The webhooks that the experiment names."""


@dataclass(frozen=True, slots=True)
class EventCondition:
    """The values of an event that triggers compare."""

    state: str = ""
    """The new state of a state change or alarm."""
    level: str = ""
    """The level of an alert."""
    values: Mapping[str, float] = field(default_factory=dict)
    """The metrics of a validation by name, for METRIC_THRESHOLD_EXCEEDED."""
    pattern: str = ""
    """The regular expression that a log line matched, for TASK_LOG."""


def read_routes(context: StepContext) -> tuple[Route, ...]:
    """Read the routes of all webhooks in a step. Return () without webhooks.

    The first call of a commit reads a row. A damaged row is named in the journal entry of the step.
    """
    decoded = decode_routes(context.row(*ROUTES).body)
    if decoded.damaged and DAMAGED not in context.reasons:
        context.add_reason(DAMAGED)
    return decoded.routes


def decode_routes(body: bytes) -> DecodedRoutes:
    """Decode the row with all routes. Fields of newer releases are ignored.

    An invalid route is left out and counted: a damaged row must not stop an experiment, nor the
    other webhooks. An empty body has no routes.
    """
    if not body:
        return DecodedRoutes((), 0)
    try:
        encoded = list(json.loads(body)["routes"])
    except (ValueError, TypeError, KeyError):
        return DecodedRoutes((), 1)
    routes = tuple(route for values in encoded if (route := _route(values)) is not None)
    return DecodedRoutes(routes, len(encoded) - len(routes))


def encode_routes(routes: Iterable[Route]) -> bytes:
    """Encode the row with all routes. Fields with their defaults are left out."""
    encoded = [_without_defaults(route) for route in routes]
    return json.dumps({"routes": encoded}, separators=(",", ":")).encode()


def matching_webhooks(
    routes: Iterable[Route], type_: EventType, condition: EventCondition, scope: EventScope
) -> tuple[int, ...]:
    """Return the ids of the webhooks that announce an event, in the order of the routes."""
    if scope.choice.exclude:
        return ()
    return tuple(
        route.webhook
        for route in routes
        if has_scope(route, scope)
        and any(_fires(trigger, type_, condition) for trigger in route.triggers)
    )


def has_scope(route: Route, scope: EventScope) -> bool:
    """Return whether the filters of a route accept an event with this scope."""
    choice = scope.choice
    if route.is_specific and route.webhook not in choice.ids and route.name not in choice.names:
        return False
    if route.labels and not set(route.labels) & set(scope.labels):
        return False
    if route.experiments and scope.experiment_id not in route.experiments:
        return False
    return (
        route.workspace in (None, scope.workspace)
        and route.project in (None, scope.project)
        and route.user in (None, scope.user)
    )


def _fires(trigger: Trigger, type_: EventType, condition: EventCondition) -> bool:
    """Return whether a trigger accepts an event."""
    if trigger.type != type_:
        return False
    if type_ is EventType.METRIC_THRESHOLD_EXCEEDED:
        value = condition.values.get(trigger.metric)
        return value is not None and is_crossed(trigger, value)
    if trigger.states and condition.state not in trigger.states:
        return False
    if trigger.levels and condition.level not in trigger.levels:
        return False
    return not trigger.pattern or trigger.pattern == condition.pattern


def is_crossed(trigger: Trigger, value: float) -> bool:
    """Return whether a metric's value is beyond the limits of a trigger. NaN never is."""
    return (trigger.above is not None and value > trigger.above) or (
        trigger.below is not None and value < trigger.below
    )


def _route(values: Any) -> Route | None:
    """Build a route from decoded JSON. Return None for missing fields and wrong forms."""
    try:
        known = _known_fields(Route, values)
        known["triggers"] = tuple(_trigger(trigger) for trigger in values["triggers"])
        return Route(**known)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _trigger(values: Mapping[str, Any]) -> Trigger:
    """Build a trigger from decoded JSON. Raises TypeError if the type is missing."""
    return Trigger(**_known_fields(Trigger, values))


def _known_fields(record: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the known fields of a decoded JSON object, with tuples in place of lists."""
    names = {known.name for known in fields(record)}
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in values.items()
        if name in names
    }


def _without_defaults(route: Route) -> dict[str, Any]:
    """Return a route as JSON values without fields that have default values."""
    return {
        name: [_compact(trigger) for trigger in route.triggers] if name == "triggers" else value
        for name, value in _compact(route).items()
    }


def _compact(record: Route | Trigger) -> dict[str, Any]:
    """Return the fields of a record that differ from the defaults."""
    defaults = {known.name: known.default for known in fields(record)}
    return {name: value for name, value in asdict(record).items() if value != defaults[name]}
