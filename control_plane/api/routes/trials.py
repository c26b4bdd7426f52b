"""Routes of trials: describe, change, kill; their checkpoints and files for TensorBoard."""

from typing import Annotated

from fastapi import Path, Response

from control_plane.access.principals import USER_ROLES
from control_plane.actors import addresses
from control_plane.actors.messages.trial import TrialKillRequested
from control_plane.api.dependencies import IdempotencyParameter, PageParameters, ServicesParameter
from control_plane.api.metadata import OWN_METADATA_BYTES_MAX, MetadataBody, check_metadata
from control_plane.api.responses import answer_response
from control_plane.api.route_guards import Caller, guarded_router, require_role
from control_plane.queries import checkpoint as checkpoints
from control_plane.queries import trial as trials
from control_plane.queries.event_files import TrialEventFile, list_event_files
from control_plane.queries.pages import Page
from control_plane.usecases.metadata_edits import set_trial_metadata

router = guarded_router("trials")

TrialId = Annotated[int, Path(ge=1, le=10**12 - 1)]


@router.get("/trials/{trial_id}")
@require_role(*USER_ROLES)
def describe(trial_id: TrialId, services: ServicesParameter) -> trials.TrialWithEnvironment:
    return trials.describe_trial(services, trial_id)


@router.patch("/trials/{trial_id}", response_model=trials.TrialWithEnvironment)
@require_role(*USER_ROLES)
def change(
    trial_id: TrialId,
    body: MetadataBody,
    request: IdempotencyParameter,
    services: ServicesParameter,
) -> Response:
    """Set the metadata of a trial. With `revision` only if they are of that still."""
    check_metadata(body.metadata, OWN_METADATA_BYTES_MAX)
    answer = request.execute(
        services,
        lambda extra_writes: set_trial_metadata(
            services, trial_id, body.metadata, body.revision, extra_writes
        ),
        lambda reply: trials.describe_trial(services, reply),
    )
    return answer_response(answer)


@router.post("/trials/{trial_id}/kill", response_model=trials.TrialWithEnvironment)
@require_role(*USER_ROLES)
def kill(
    trial_id: TrialId, caller: Caller, request: IdempotencyParameter, services: ServicesParameter
) -> Response:
    """Kill this trial; the search goes on without it."""
    address = addresses.trial(trial_id)
    answer = request.execute(
        services,
        lambda extra_writes: services.engine.execute_command(
            address, TrialKillRequested(), by=caller.user, extra_writes=extra_writes
        ),
        lambda reply: trials.describe_trial(services, reply),
    )
    return answer_response(answer)


@router.get("/trials/{trial_id}/checkpoints")
@require_role(*USER_ROLES)
def list_checkpoints(
    trial_id: TrialId, services: ServicesParameter, page: PageParameters
) -> Page[checkpoints.Checkpoint]:
    return checkpoints.list_trial_checkpoints(services, trial_id, page)


@router.get("/trials/{trial_id}/event-files")
@require_role(*USER_ROLES)
def list_trial_event_files(
    trial_id: TrialId, services: ServicesParameter, page: PageParameters
) -> Page[TrialEventFile]:
    """List the files for TensorBoard that the trial wrote, with URLs to fetch them."""
    return list_event_files(services, trial_id, page)
