"""The dispatch of an event to a search method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from detcloud.searcher.method import ExitedReason, SearcherState, SearchMethod
from detcloud.searcher.operations import Operation
from detcloud.shared.errors import DetcloudError


def handle_event(
    method: SearchMethod, state: SearcherState, event: Mapping[str, Any]
) -> list[Operation]:
    """Record the event in `state`, call the method's hook for the event, and return the operations.

    Return an empty list for progress, for an unknown event of a trial, and if the hook returns
    None. Raises DetcloudError if the hook returns anything but operations. Exceptions of the hook
    pass through. After an error, `state` contains the event already.
    """
    state.last_event_id = event["id"]
    operations = _call_hook(method, state, event)
    for operation in operations or ():
        if not isinstance(operation, Operation):
            raise DetcloudError(
                f"{type(method).__name__} answered {event['type']} with {operation!r}; expected a "
                "list of operations of detcloud.searcher"
            )
    return list(operations or ())


def _call_hook(
    method: SearchMethod, state: SearcherState, event: Mapping[str, Any]
) -> list[Operation]:
    """Record the event in `state` and return the unchecked result of the method's hook.

    The sets of created, closed and failed trials and each trial's progress are updated first.
    Return an empty list for progress, which has no hook, and for an unknown type of a trial's
    event.
    """
    if event["type"] == "initial_operations":
        return method.initial_operations(state)
    trial = UUID(event["request_id"])
    match event["type"]:
        case "trial_created":
            state.trials_created.add(trial)
            state.trial_progress[trial] = 0.0
            return method.on_trial_created(state, trial)
        case "trial_progress":
            state.trial_progress[trial] = event["units"]
            return []
        case "validation_completed":
            length = event["length"]
            state.trial_progress[trial] = max(state.trial_progress.get(trial, 0.0), float(length))
            metric = _with_numbers(event["metric"])
            return method.on_validation_completed(state, trial, metric, length)
        case "trial_exited_early":
            reason = ExitedReason.from_cluster(event["reason"])
            if reason is ExitedReason.INVALID_HP:
                state.trial_progress.pop(trial, None)
            elif reason is ExitedReason.ERRORED:
                state.failures.add(trial)
            return method.on_trial_exited_early(state, trial, reason)
        case "trial_closed":
            state.trials_closed.add(trial)
            return method.on_trial_closed(state, trial)
        case _:
            # An event of a newer cluster.
            return []


def _with_numbers(value: Any) -> Any:
    """Return a metric value with the strings of NaN and the infinities as floats, at every
    depth.
    """
    if isinstance(value, dict):
        return {name: _with_numbers(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_with_numbers(item) for item in value]
    return float(value) if value in ("NaN", "Infinity", "-Infinity") else value
