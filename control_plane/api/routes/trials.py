"""Routes of trials: describe, change and kill, and lists of checkpoints and TensorBoard files."""

from fastapi import Response

from control_plane.access.principals import USER_ROLES
from control_plane.actors import addresses
from control_plane.actors.messages.trial import TrialKillRequested
from control_plane.api.dependencies import (
    IdempotencyParameter,
    PageParameters,
    ServicesParameter,
    TrialId,
)
from control_plane.api.metadata import OWN_METADATA_BYTES_MAX, MetadataBody, check_metadata
from control_plane.api.owned_objects import trial_in_path
from control_plane.api.responses import answer_response
from control_plane.api.route_guards import Caller, guarded_router, require_role
from control_plane.queries import checkpoint as checkpoints
from control_plane.queries import trial as trials
from control_plane.queries.event_files import TrialEventFile, list_event_files
from control_plane.queries.pages import Page
from control_plane.queries.trial_media import MediaPage, list_media
from control_plane.usecases.metadata_edits import set_trial_metadata

router = guarded_router("trials")


@router.get("/trials/{trial_id}")
@require_role(*USER_ROLES)
def describe(trial_id: TrialId, services: ServicesParameter) -> trials.TrialWithEnvironment:
    return trials.describe_trial(services, trial_id)


@router.patch("/trials/{trial_id}", response_model=trials.TrialWithEnvironment)
@require_role(*USER_ROLES, changes=trial_in_path)
def change(
    trial_id: TrialId,
    body: MetadataBody,
    request: IdempotencyParameter,
    services: ServicesParameter,
) -> Response:
    """Replace the metadata of a trial, also of a running trial, and return the trial.

    A repetition with the same Idempotency-Key changes nothing and gets the first answer. Errors:
    `not_found` for an unknown trial. `forbidden` for another user's experiment. `invalid` for
    metadata of more than 16 KiB, or with values that cannot be stored. `conflict` if `revision` is
    given and the metadata have another revision, or if the experiment is being deleted.
    `unavailable` if other requests keep changing the metadata.
    """
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
@require_role(*USER_ROLES, changes=trial_in_path)
def kill(
    trial_id: TrialId, caller: Caller, request: IdempotencyParameter, services: ServicesParameter
) -> Response:
    """Kill a trial immediately, and return the trial. The search continues without the trial.

    Killing an ended or killed trial changes nothing. A repetition with the same Idempotency-Key
    gets the first answer. Errors: `not_found` for an unknown or deleted trial. `forbidden` for
    another user's experiment.
    """
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
    """List the TensorBoard files of a trial by path, each with URLs for the download.

    Errors: `not_found` for an unknown trial. `invalid` for a cursor of another list. `conflict` if
    the store has too many parts of files, or the cluster may not call the store. `unavailable` if
    the store does not answer.
    """
    return list_event_files(services, trial_id, page)


@router.get("/trials/{trial_id}/media")
@require_role(*USER_ROLES)
def list_trial_media(
    trial_id: TrialId, services: ServicesParameter, page: PageParameters
) -> MediaPage:
    """List the images, histograms, texts and audio in the TensorBoard files of a trial.

    A page reads about 16 MiB of the files, and may be empty although `next_cursor` is set. Errors:
    `not_found` for an unknown trial. `invalid` for a cursor of another list. `conflict` if the
    store has too many parts of files, or the cluster may not call the store. `unavailable` if the
    store does not answer.
    """
    return list_media(services, trial_id, page)
