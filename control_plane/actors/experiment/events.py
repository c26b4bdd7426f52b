"""The events of experiments and trials that webhooks announce.

An event is raised in the step that changes the state. Without webhooks, the step reads only the row
with the routes of all webhooks.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from control_plane.actors import addresses
from control_plane.actors.event_routes import (
    EventCondition,
    EventScope,
    EventType,
    Route,
    Trigger,
    WebhookChoice,
    is_crossed,
    read_routes,
)
from control_plane.actors.events import TEXT_CHARACTERS_MAX, Event, raise_event
from control_plane.actors.experiment.state import ExperimentState, definition_of, settings_of
from control_plane.actors.experiment.trial_summaries import TrialSummary, summary_of
from control_plane.actors.messages.experiment import TrialEnded, TrialValidationReported
from control_plane.actors.messages.experiment_events import (
    DeadlineNear,
    TrialAlerted,
    TrialLogMatched,
    WebhooksChanged,
)
from control_plane.actors.messages.experiment_use import TrialUsedLittle
from control_plane.actors.records import Status
from control_plane.actors.step import StepContext
from control_plane.evolve import evolve

ANNOUNCED = frozenset(
    {Status.ACTIVE, Status.PAUSED, Status.COMPLETED, Status.CANCELED, Status.ERROR}
)
"""The statuses of experiments that webhooks announce."""
EVENTS_OF_STEP_MAX = 16
"""The most events of a validation, because a commit has a limited number of writes."""
ALERTS_MAX = 1_000
"""The most alerts of an experiment that webhooks announce."""
NEAR_DEADLINE = 0.9
"""The part of the time until a deadline after which the deadline may be at risk."""


def raise_status_event(
    before: ExperimentState | None, after: ExperimentState | None, context: StepContext
) -> ExperimentState | None:
    """Raise an event if a step created the experiment, or set a new status of ANNOUNCED.

    Return `after` with the number of raised events. The row of the event is written only if a
    webhook announces the event.
    """
    if after is None or not after.raises_events or after.status not in ANNOUNCED:
        return after
    if before is not None and before.status is after.status:
        return after
    routes = read_routes(context)
    after = _watch_metrics(routes, after, context)
    if not routes:
        return after
    return raise_experiment_event(
        routes,
        after,
        EventType.EXPERIMENT_STATE_CHANGE,
        f"{experiment_title(after)} is {after.status}",
        context,
        text=after.message,
        condition=EventCondition(state=after.status),
    )


def raise_trial_event(
    state: ExperimentState, trial: TrialSummary, message: TrialEnded, context: StepContext
) -> ExperimentState:
    """Raise an event for the end of a trial. Return the state with the number of raised events.

    Args:
        trial: the summary of the trial after its end.
    """
    if not state.raises_events:
        return state
    routes = read_routes(context)
    state = _watch_metrics(routes, state, context)
    if not routes:
        return state
    return raise_experiment_event(
        routes,
        state,
        EventType.TRIAL_STATE_CHANGE,
        f"trial {trial.trial_id} of {experiment_title(state)} is {message.status}",
        context,
        text=message.message,
        condition=EventCondition(state=message.status),
        data={
            "trial": {
                "id": trial.trial_id,
                "experiment_id": state.experiment_id,
                "state": message.status,
                "metric": trial.metric,
                "message": message.message,
            }
        },
    )


def apply_event_message(
    state: ExperimentState,
    message: TrialAlerted | TrialUsedLittle | TrialLogMatched | WebhooksChanged | DeadlineNear,
    context: StepContext,
) -> ExperimentState:
    """Raise the event of an alert, low use, a line of a log or a near deadline, or look for
    webhooks for metrics.

    Return the state with the number of raised events. An alert after ALERTS_MAX others is dropped.
    A deadline is at risk if less than nine tenths of the search are done. A DeadlineNear of an
    earlier run generation changes nothing, nor does one of an experiment that is stopping or has
    ended.
    """
    if not state.raises_events or state.status.is_deleting:
        return state
    match message:
        case WebhooksChanged():
            return _watch_metrics(read_routes(context), state, context)
        case TrialAlerted():
            return _raise_alert_event(state, message, context)
        case TrialUsedLittle():
            return _raise_low_use_event(state, message, context)
        case TrialLogMatched(trial_id, pattern, line, webhook):
            return raise_log_event(state, trial_id, pattern, line, context, webhook_name=webhook)
        case DeadlineNear():
            is_over = state.status.is_stopping or state.status.is_final
            if is_over or message.run_generation != state.run_generation:
                return state
            progress = state.progress or 0.0
            if progress >= NEAR_DEADLINE:
                return state
            text = f"nine tenths of the time until the deadline are over; {progress:.0%} is done"
            return raise_limit_event(state, "deadline", text, context)


def set_deadline_timer(
    state: ExperimentState, deadline_ms: int | None, context: StepContext
) -> None:
    """Set the timer after which a deadline may be at risk. Do nothing without a deadline.

    Args:
        deadline_ms: the time by which the experiment is to have ended, in epoch ms, or None.
    """
    if deadline_ms is None or not state.raises_events:
        return
    left_ms = int((deadline_ms - context.now_ms) * NEAR_DEADLINE)
    context.set_timer(context.now_ms + left_ms, DeadlineNear(state.run_generation))


def raise_limit_event(
    state: ExperimentState, limit: str, text: str, context: StepContext
) -> ExperimentState:
    """Raise an event for a limit that is reached or at risk. Return the state after the event.

    Args:
        limit: `max_cost` or `deadline`.
        text: what has happened, for users.
    """
    if not state.raises_events or not (routes := read_routes(context)):
        return state
    return raise_experiment_event(
        routes,
        state,
        EventType.LIMIT_AT_RISK,
        f"the {limit} of {experiment_title(state)} is at risk",
        context,
        text=text,
        condition=EventCondition(),
        data={"limit": {"name": limit}},
    )


def raise_threshold_events(
    state: ExperimentState, trial_id: int, message: TrialValidationReported, context: StepContext
) -> ExperimentState:
    """Raise an event for each limit of a webhook that a validation is the first to cross.

    Return the state after the events. Do nothing unless a webhook may announce metrics.

    Args:
        trial_id: the id of the trial that validated.
    """
    if not state.watches_metrics:
        return state
    values = dict(message.values)
    if message.metric is not None:
        values[state.metric] = message.metric
    limit_of_step = state.events_raised + EVENTS_OF_STEP_MAX
    for route in read_routes(context):
        for place, trigger in enumerate(route.triggers):
            limit, value = _limit_name(route, place), values.get(trigger.metric)
            is_threshold = trigger.type == EventType.METRIC_THRESHOLD_EXCEEDED
            if not is_threshold or value is None or limit in state.crossed_limits:
                continue
            if not is_crossed(trigger, value) or state.events_raised >= limit_of_step:
                # The next validation announces the limits beyond EVENTS_OF_STEP_MAX.
                continue
            before = state.events_raised
            state = raise_experiment_event(
                (replace(route, triggers=(trigger,)),),
                state,
                EventType.METRIC_THRESHOLD_EXCEEDED,
                f"trial {trial_id} of {experiment_title(state)} has {trigger.metric} {value:g}",
                context,
                condition=EventCondition(values={trigger.metric: value}),
                data={"validation": _validation_data(state, trial_id, message)},
            )
            if state.events_raised > before:
                state = evolve(state, crossed_limits=(*_present_limits(state, route), limit))
    return state


def _limit_name(route: Route, place: int) -> str:
    """Return the name of a limit in `crossed_limits`. A change of the triggers changes the name."""
    return f"{route.webhook}/{place}" + (f"/{route.edits}" if route.edits else "")


def _present_limits(state: ExperimentState, route: Route) -> tuple[str, ...]:
    """Return the crossed limits without limits of former triggers of the route's webhook."""
    if not route.edits:
        return state.crossed_limits
    own, present = f"{route.webhook}/", f"/{route.edits}"
    return tuple(
        limit
        for limit in state.crossed_limits
        if not limit.startswith(own) or limit.endswith(present)
    )


def raise_log_event(
    state: ExperimentState,
    trial_id: int,
    pattern: str,
    line: str,
    context: StepContext,
    *,
    webhook_name: str = "",
) -> ExperimentState:
    """Raise an event for a line of a trial's log that matches a pattern.

    Return the state after the event.

    Args:
        pattern: the regular expression, as in the triggers of webhooks.
        line: the line of the log.
        webhook_name: the name of the only webhook that announces the line, whatever its triggers
            and filters are, except for the user. "": the webhooks whose triggers have the pattern.
    """
    if not state.raises_events:
        return state
    routes = read_routes(context)
    if webhook_name:
        anything = (Trigger(EventType.TASK_LOG),)
        routes = tuple(
            # Other users must not fill the webhook of a user with their lines.
            Route(route.webhook, route.name, anything, user=route.user)
            for route in routes
            if route.name == webhook_name
        )
    if not routes:
        return state
    return raise_experiment_event(
        routes,
        state,
        EventType.TASK_LOG,
        f"the log of trial {trial_id} of {experiment_title(state)} matches {pattern}",
        context,
        text=line,
        condition=EventCondition(pattern=pattern),
        data={
            "log": {"trial_id": trial_id, "pattern": pattern, "line": line[:TEXT_CHARACTERS_MAX]}
        },
    )


def raise_experiment_event(
    routes: tuple[Route, ...],
    state: ExperimentState,
    type_: EventType,
    title: str,
    context: StepContext,
    *,
    text: str = "",
    condition: EventCondition,
    data: Mapping[str, Any] | None = None,
) -> ExperimentState:
    """Raise an event of the experiment. Return the state with the number of raised events.

    Args:
        routes: the routes of all webhooks.
        title: a sentence for users, without a full stop.
        text: more for users, or "".
        condition: the values that triggers compare.
        data: further objects for receivers, beside the experiment.
    """
    settings = settings_of(context)
    scope = EventScope(
        settings.workspace,
        settings.project,
        settings.labels,
        state.owner,
        state.experiment_id,
        definition_of(context).webhooks or WebhookChoice(),
    )
    number = state.events_raised + 1
    event = Event(
        type_,
        addresses.experiment(state.experiment_id),
        number,
        title,
        text,
        condition,
        {"experiment": experiment_data(state, context), **(data or {})},
        scope,
    )
    return evolve(state, events_raised=number) if raise_event(routes, event, context) else state


def _raise_alert_event(
    state: ExperimentState, message: TrialAlerted, context: StepContext
) -> ExperimentState:
    """Raise the event of an alert, unless ALERTS_MAX others were raised or no trial has the number.

    Return the state after the event.
    """
    summary = summary_of(message.number, context)
    if summary is None or state.alerts >= ALERTS_MAX or not (routes := read_routes(context)):
        return state
    alert = {
        "trial_id": summary.trial_id,
        "title": message.title,
        "description": message.text,
        "level": message.level,
    }
    after = raise_experiment_event(
        routes,
        state,
        EventType.CUSTOM,
        message.title or f"trial {summary.trial_id} of {experiment_title(state)} raised an alert",
        context,
        text=message.text,
        condition=EventCondition(level=message.level),
        data={"alert": alert},
    )
    return after if after is state else evolve(after, alerts=state.alerts + 1)


def _raise_low_use_event(
    state: ExperimentState, message: TrialUsedLittle, context: StepContext
) -> ExperimentState:
    """Raise the event of a trial with low use of the slots. Return the state after the event.

    Without webhooks, and without a trial of the number, return the state unchanged.
    """
    summary = summary_of(message.number, context)
    if summary is None or not (routes := read_routes(context)):
        return state
    trial = f"trial {summary.trial_id} of {experiment_title(state)}"
    outcome = "is ended, because it uses" if message.is_ended else "uses"
    return raise_experiment_event(
        routes,
        state,
        EventType.LOW_USE,
        f"{trial} {outcome} little of its slots",
        context,
        text=message.text,
        condition=EventCondition(),
        data={"low_use": {"trial_id": summary.trial_id, "is_ended": message.is_ended}},
    )


def _watch_metrics(
    routes: tuple[Route, ...], state: ExperimentState, context: StepContext
) -> ExperimentState:
    """Record whether a webhook may announce metrics of the experiment. Return the state."""
    metric_types = (EventType.METRIC_THRESHOLD_EXCEEDED, EventType.BEST_VALIDATION)
    watches = any(trigger.type in metric_types for route in routes for trigger in route.triggers)
    return state if watches is state.watches_metrics else evolve(state, watches_metrics=watches)


def _validation_data(
    state: ExperimentState, trial_id: int | None, message: TrialValidationReported
) -> dict[str, Any]:
    """Return a validation in the form for receivers."""
    own = {} if message.metric is None else {state.metric: message.metric}
    return {"trial_id": trial_id, "units": message.units, "metrics": {**message.values, **own}}


def experiment_data(state: ExperimentState, context: StepContext) -> dict[str, Any]:
    """Return the experiment in the form for receivers. The first fields are those of Determined.

    The field `github` has the commit of the code, and is absent without a commit.
    """
    settings, definition = settings_of(context), definition_of(context)
    ended_ms = context.now_ms if state.ended_ms is None else state.ended_ms
    return {
        "id": state.experiment_id,
        "state": state.status,
        "name": state.name,
        "slots_per_trial": definition.settings.slots,
        "duration": max(0, ended_ms - state.created_ms) // 1000,
        "resource_pool": state.pool,
        "workspace": settings.workspace,
        "project": settings.project,
        "kind": state.kind,
        "user": state.owner,
        "labels": list(settings.labels),
        "metric": state.metric,
        "best_metric": state.best_metric,
        "best_trial": state.best_trial,
        "message": state.message,
        "created_ms": state.created_ms,
        "ended_ms": state.ended_ms,
        **({} if definition.source is None else {"github": asdict(definition.source)}),
    }


def experiment_title(state: ExperimentState) -> str:
    """Return the kind, id and name of an experiment, for example `experiment 7 (digits)`."""
    return f"{state.title} ({state.name})" if state.name else state.title
