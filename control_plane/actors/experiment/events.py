"""The events of an experiment and its trials that webhooks announce.

An event is raised in the step that changes the state. Without webhooks, the step reads only the row
with the routes of all webhooks.
"""

from collections.abc import Mapping
from typing import Any

from control_plane.actors import addresses
from control_plane.actors.event_routes import (
    EventCondition,
    EventScope,
    EventType,
    Route,
    WebhookChoice,
    read_routes,
)
from control_plane.actors.events import Event, raise_event
from control_plane.actors.experiment.state import ExperimentState, definition_of, settings_of
from control_plane.actors.experiment.trial_summaries import TrialSummary
from control_plane.actors.messages.experiment import TrialEnded
from control_plane.actors.records import Status
from control_plane.actors.step import StepContext
from control_plane.evolve import evolve

ANNOUNCED = frozenset(
    {Status.ACTIVE, Status.PAUSED, Status.COMPLETED, Status.CANCELED, Status.ERROR}
)
"""The statuses of experiments that webhooks announce."""


def raise_status_event(
    before: ExperimentState | None, after: ExperimentState | None, context: StepContext
) -> ExperimentState | None:
    """Raise an event if a step created the experiment, or changed the status to one of ANNOUNCED.

    Return `after` with the number of raised events. The row of the event is written only if a
    webhook announces the event.
    """
    if after is None or not after.raises_events or after.status not in ANNOUNCED:
        return after
    if before is not None and before.status is after.status:
        return after
    routes = read_routes(context)
    if not routes:
        return after
    return raise_experiment_event(
        routes,
        after,
        EventType.EXPERIMENT_STATE_CHANGE,
        f"{titled(after)} is {after.status}",
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
    routes = read_routes(context) if state.raises_events else ()
    if not routes:
        return state
    return raise_experiment_event(
        routes,
        state,
        EventType.TRIAL_STATE_CHANGE,
        f"trial {trial.trial_id} of {titled(state)} is {message.status}",
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


def experiment_data(state: ExperimentState, context: StepContext) -> dict[str, Any]:
    """Return the experiment in the form for receivers. The first fields are those of Determined."""
    settings, trial_settings = settings_of(context), definition_of(context).settings
    ended_ms = context.now_ms if state.ended_ms is None else state.ended_ms
    return {
        "id": state.experiment_id,
        "state": state.status,
        "name": state.name,
        "slots_per_trial": trial_settings.slots,
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
    }


def titled(state: ExperimentState) -> str:
    """Return the kind, id and name of an experiment, for example `experiment 7 (digits)`."""
    return f"{state.title} ({state.name})" if state.name else state.title
