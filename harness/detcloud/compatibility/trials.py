"""The fields by which Determined's trials are sorted, filtered and selected."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum, StrEnum
from typing import Any, TypeVar

from detcloud.client import Trial as ClusterTrial
from detcloud.compatibility.handles import OrderBy, is_ascending
from detcloud.shared.errors import DetcloudError

Item = TypeVar("Item")


class TrialState(StrEnum):
    """The states of trials."""

    ACTIVE = "ACTIVE"
    PAUSED = "PAUSED"
    STOPPING_CANCELED = "STOPPING_CANCELED"
    STOPPING_KILLED = "STOPPING_KILLED"
    STOPPING_COMPLETED = "STOPPING_COMPLETED"
    STOPPING_ERROR = "STOPPING_ERROR"
    CANCELED = "CANCELED"
    COMPLETED = "COMPLETED"
    ERROR = "ERROR"
    # Determined's states within ACTIVE, which detcloud never returns.
    QUEUED = "QUEUED"
    PULLING = "PULLING"
    STARTING = "STARTING"
    RUNNING = "RUNNING"


class TrialSortBy(Enum):
    """The fields by which lists of trials are sorted, as names of detcloud's fields."""

    ID = "id"
    START_TIME = "created_ms"
    END_TIME = "ended_ms"
    STATE = "state"
    BEST_VALIDATION_METRIC = "best_metric"
    LATEST_VALIDATION_METRIC = "metric"
    BATCHES_PROCESSED = "steps_completed"
    DURATION = "duration"
    RESTARTS = "restarts"


TrialOrderBy = OrderBy


class LogLevel(Enum):
    """The levels of log lines."""

    TRACE = "TRACE"
    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"
    CRITICAL = "CRITICAL"


def sort_trials(
    trials: Iterable[ClusterTrial], sort_by: TrialSortBy, order_by: Any
) -> list[ClusterTrial]:
    """Return the trials sorted by a field. Trials without a value come last in both orders.

    `order_by` None is ascending.
    """

    def value_of(trial: ClusterTrial) -> Any:
        if sort_by is TrialSortBy.DURATION:
            return None if trial.ended_ms is None else trial.ended_ms - trial.created_ms
        return getattr(trial, sort_by.value)

    found = list(trials)
    known = [one for one in found if value_of(one) is not None]
    unknown = [one for one in found if value_of(one) is None]
    descends = order_by is not None and not is_ascending(order_by)
    return [*sorted(known, key=value_of, reverse=descends), *unknown]


def refuse_options(place: str, options: dict[str, object], instead: str) -> None:
    """Raise a DetcloudError that names the options with a value other than None, if any.

    `place` is the function's name, and `instead` the replacement for the message.
    """
    if given := ", ".join(sorted(name for name, value in options.items() if value is not None)):
        raise DetcloudError(f"{place} does not support {given} in detcloud: use {instead}")


def order_of(smaller_is_better: bool | None) -> OrderBy | None:
    """Return the order in which the best metric is first. Return None for the searcher's order."""
    if smaller_is_better is None:
        return None
    return OrderBy.ASC if smaller_is_better else OrderBy.DESC


def first_item(found: Sequence[Item], missing: str) -> Item:
    """Return the first item. Raise a DetcloudError with the text `missing` if the sequence is
    empty.
    """
    if not found:
        raise DetcloudError(missing)
    return found[0]
