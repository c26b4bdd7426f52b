"""Routes of the retention of logs and metrics: days, previews, and the cleanup by an admin."""

from typing import Annotated

from fastapi import Query, Response
from pydantic import Field

from control_plane.access.principals import USER_ROLES, Principal, Role
from control_plane.actors import addresses
from control_plane.actors.messages.experiment import SettingsChanged
from control_plane.actors.messages.experiment_expiry import ExpiryRequested
from control_plane.actors.records import RETENTION_DAYS_MAX, DataRetention
from control_plane.api.dependencies import (
    ExperimentId,
    IdempotencyParameter,
    PageParameters,
    ServicesParameter,
)
from control_plane.api.owned_objects import experiment_in_path
from control_plane.api.request_body import RequestBody
from control_plane.api.responses import answer_response
from control_plane.api.route_guards import Caller, guarded_router, require_role
from control_plane.errors import invalid
from control_plane.queries import trial as trials
from control_plane.queries.cluster_configuration import data_retention
from control_plane.queries.pages import Page
from control_plane.queries.retention import (
    ExperimentRetention,
    TrialData,
    describe_retention,
    list_retentions,
    list_trial_data,
)
from control_plane.services import Services
from control_plane.usecases.idempotency import IdempotentRequest

router = guarded_router("retention")

Days = Annotated[int, Field(ge=-1, le=RETENTION_DAYS_MAX)]


class RetentionBody(RequestBody):
    """The days to change. Absent and null days stay unchanged; -1 keeps the data for ever.

    With `trial_id`, `log_retention_days` is that of a single trial.
    """

    log_retention_days: Days | None = None
    metrics_retention_days: Days | None = None
    trial_id: Annotated[int, Field(ge=1, le=10**12 - 1)] | None = None


@router.get("/retention")
@require_role(*USER_ROLES)
def list_all(
    services: ServicesParameter, page: PageParameters, due: Annotated[bool, Query()] = False
) -> Page[ExperimentRetention]:
    """List the retention of ended experiments, sorted by id.

    `due` lists only experiments whose logs or metrics a cleanup would delete now. A page may be
    short or empty. Error: `invalid` for a cursor of another list.
    """
    return list_retentions(services, page, due=due)


@router.get("/experiments/{experiment_id}/retention")
@require_role(*USER_ROLES)
def describe(experiment_id: ExperimentId, services: ServicesParameter) -> ExperimentRetention:
    """Return the retention of an experiment's logs and metrics.

    Error: `not_found` for an unknown experiment.
    """
    return describe_retention(services, experiment_id)


@router.get("/experiments/{experiment_id}/retention/trials")
@require_role(*USER_ROLES)
def list_trials(
    experiment_id: ExperimentId, services: ServicesParameter, page: PageParameters
) -> Page[TrialData]:
    """List the sizes of the logs and detailed metrics of an experiment's trials.

    A page has at most 20 trials. Errors: `not_found` for an unknown experiment. `invalid` for a
    cursor of another list.
    """
    return list_trial_data(services, experiment_id, page)


@router.patch("/experiments/{experiment_id}/retention", response_model=ExperimentRetention)
@require_role(*USER_ROLES, changes=experiment_in_path)
def change(
    experiment_id: ExperimentId,
    body: RetentionBody,
    caller: Caller,
    request: IdempotencyParameter,
    services: ServicesParameter,
) -> Response:
    """Change how long logs and metrics of an experiment are kept, and return the retention.

    Data whose retention has then ended is deleted soon. Errors: `not_found` for an unknown
    experiment. `forbidden` for another user's experiment. `invalid` for days out of range, for a
    trial of another experiment, and for metrics of a single trial. `conflict` if the experiment is
    being deleted.
    """
    message = _change_of(services, experiment_id, body)
    return _send_command(services, request, caller, experiment_id, message)


@router.post("/experiments/{experiment_id}/retention/cleanup", response_model=ExperimentRetention)
@require_role(Role.ADMIN)
def clean_up(
    experiment_id: ExperimentId,
    caller: Caller,
    request: IdempotencyParameter,
    services: ServicesParameter,
) -> Response:
    """Delete the expired logs and metrics of an ended experiment.

    The cluster's present defaults apply to days that the experiment does not set, and the cluster's
    schedule is not awaited. The collection deletes the data within minutes. Without expired data,
    nothing happens. Return the retention. Errors: `not_found` for an unknown experiment.
    `conflict` if the experiment has not ended, or is being deleted.
    """
    message = ExpiryRequested(data_retention(services.table))
    return _send_command(services, request, caller, experiment_id, message)


def _send_command(
    services: Services,
    request: IdempotentRequest,
    caller: Principal,
    experiment_id: int,
    message: SettingsChanged | ExpiryRequested,
) -> Response:
    """Send a command to an experiment, and return the experiment's retention."""
    answer = request.execute(
        services,
        lambda extra_writes: services.engine.execute_command(
            addresses.experiment(experiment_id),
            message,
            by=caller.user,
            extra_writes=extra_writes,
        ),
        lambda reply: describe_retention(services, experiment_id),
    )
    return answer_response(answer)


def _change_of(services: Services, experiment_id: int, body: RetentionBody) -> SettingsChanged:
    """Return the command for a change of days. Raises RequestError invalid and not_found."""
    if body.trial_id is None:
        retention = DataRetention(body.log_retention_days, body.metrics_retention_days)
        return SettingsChanged(data_retention=retention)
    if body.metrics_retention_days is not None or body.log_retention_days is None:
        text = "takes log_retention_days only"
        raise invalid("trial_id", text, "change metrics_retention_days for the whole experiment")
    if trials.get_trial(services, body.trial_id).experiment_id != experiment_id:
        raise invalid("trial_id", f"{body.trial_id} is not a trial of experiment {experiment_id}")
    return SettingsChanged(trial_log_days=(body.trial_id, body.log_retention_days))
