"""Trials: described, with their metrics, logs and checkpoints."""

from typing import Annotated

from fastapi import Path, Query
from pydantic import BaseModel

from control_plane.agents.logs import TrialLogs
from control_plane.api.errors import invalid
from control_plane.api.guarded import PEOPLE, guarded_router, needs
from control_plane.api.pages import Page, PageParameters
from control_plane.api.services import Given
from control_plane.api.views import checkpoint as checkpoints
from control_plane.api.views import metrics
from control_plane.api.views import trial as trials

LOG_BYTES_DEFAULT = 64 * 1024
LOG_BYTES_MAX = 1024 * 1024

router = guarded_router("trials")

TrialId = Annotated[int, Path(ge=1, le=10**12 - 1)]
LogBytes = Annotated[int, Query(ge=4, le=LOG_BYTES_MAX)]


class Log(BaseModel):
    """A piece of a log; read on at `next`, until `complete`."""

    text: str
    next: int
    complete: bool


@router.get("/trials/{trial_id}")
@needs(*PEOPLE)
def describe(trial_id: TrialId, services: Given) -> trials.TrialWithEnvironment:
    return trials.trial_with_environment(services, trial_id)


@router.get("/trials/{trial_id}/metrics")
@needs(*PEOPLE)
def list_metrics(
    trial_id: TrialId,
    services: Given,
    asked: PageParameters,
    group: Annotated[str | None, Query(min_length=1, max_length=64)] = None,
) -> Page[metrics.Metrics]:
    """By group, then in the order of reporting."""
    epoch = trials.found(services, trial_id).epoch
    return metrics.metrics(services, trial_id, epoch, group, asked)


@router.get("/trials/{trial_id}/logs")
@needs(*PEOPLE)
def read_logs(
    trial_id: TrialId,
    services: Given,
    after: Annotated[int | None, Query(ge=0, le=2**53)] = None,
    limit_bytes: LogBytes = LOG_BYTES_DEFAULT,
    tail_bytes: Annotated[int | None, Query(ge=0, le=LOG_BYTES_MAX)] = None,
) -> Log:
    """From byte `after` on, or the last `tail_bytes`."""
    if after is not None and tail_bytes is not None:
        raise invalid("tail_bytes", "must not be given beside after", "keep one of them")
    # The state first: a trial that has ended has no log to come.
    state = trials.found(services, trial_id)
    ended = state.status.final
    logs = TrialLogs(services.table, services.objects)
    if tail_bytes is None:
        found = logs.read(trial_id, state.epoch, after or 0, limit_bytes, ended)
    else:
        found = logs.tail(trial_id, state.epoch, tail_bytes, ended)
    return Log(text=found.text, next=found.end, complete=ended and found.end >= found.total)


@router.get("/trials/{trial_id}/checkpoints")
@needs(*PEOPLE)
def list_checkpoints(
    trial_id: TrialId, services: Given, asked: PageParameters
) -> Page[checkpoints.Checkpoint]:
    return checkpoints.of_trial(services, trial_id, asked)
