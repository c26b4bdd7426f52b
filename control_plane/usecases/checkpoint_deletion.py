"""Deletion of one checkpoint by hand, whole or in part, and of files for TensorBoard."""

import time

from control_plane.access.principals import Principal
from control_plane.actors import addresses
from control_plane.actors.messages.trial import (
    CheckpointDeletionRequested,
    PartialDeletionRequested,
)
from control_plane.actors.trial.checkpoints import (
    CHECKPOINT_PARTS,
    CheckpointRecord,
    CheckpointState,
)
from control_plane.checkpoint_gc.checkpoint_inventory import (
    completed_checkpoints,
    newest_checkpoint,
)
from control_plane.checkpoint_gc.erasure import remove_tensorboard_files
from control_plane.checkpoint_gc.rate_limit import DeletionRateLimiter, run_steps
from control_plane.checkpoint_gc.stores import CollectionFailed, stores_of
from control_plane.errors import Code, RequestError, invalid
from control_plane.queries import checkpoint as checkpoints
from control_plane.queries import experiment as experiments
from control_plane.queries.checkpoint_files import checkpoint_folder, choose_files
from control_plane.queries.cluster_configuration import deletion_limit
from control_plane.queries.collection import find_need
from control_plane.services import Services
from control_plane.state.table import Write
from control_plane.usecases.experiment_deletion import check_may_delete
from control_plane.usecases.idempotency import ExtraWrites
from detcloud.shared.file_patterns import PATTERNS_MAX

# A gateway gives up a request after 30 seconds.
REQUEST_SECONDS_MAX = 20.0


def delete_checkpoint(
    services: Services, uuid: str, caller: Principal, extra_writes: ExtraWrites
) -> int:
    """Request the deletion of one checkpoint, unless it is deleted, and return its trial's id.

    Raises:
        RequestError: not_found; forbidden, for another's; conflict, if it is needed.
    """
    record, experiment_id = checkpoints.get_checkpoint(services, uuid)
    check_may_delete(services, experiment_id, caller)
    trial_id = record.checkpoint.trial_id

    def check_reply(reply: object) -> tuple[Write, ...]:
        if not (isinstance(reply, tuple) and uuid in reply):
            _check_deleted(services, record)
        return extra_writes(trial_id)

    message = CheckpointDeletionRequested((uuid,), instead=_replacement(services, trial_id, uuid))
    services.engine.execute_command(
        addresses.trial(trial_id), message, by=caller.user, extra_writes=check_reply
    )
    return trial_id


def delete_checkpoint_files(
    services: Services,
    uuid: str,
    patterns: tuple[str, ...],
    caller: Principal,
    extra_writes: ExtraWrites,
) -> int:
    """Have those files of a checkpoint deleted that the patterns choose, and return its trial's id.
    The checkpoint can be downloaded afterwards, and used for nothing else.

    Raises:
        RequestError: not_found; forbidden, for another's; invalid, if there is no such file;
            conflict, if the checkpoint is needed or damaged.
    """
    record, experiment_id = checkpoints.get_checkpoint(services, uuid)
    check_may_delete(services, experiment_id, caller)
    if record.state is CheckpointState.DAMAGED:
        text = f"checkpoint {uuid} is damaged, and can only be deleted as a whole"
        raise RequestError(Code.CONFLICT, f"{text}: {record.damage}")
    folder = checkpoint_folder(services, uuid)
    chosen = choose_files(folder, patterns)
    if len(chosen) == len(folder.files):
        return delete_checkpoint(services, uuid, caller, extra_writes)
    _check_patterns((*record.deleted_patterns, *patterns))
    trial_id = record.checkpoint.trial_id

    def check_reply(reply: object) -> tuple[Write, ...]:
        if reply is not True:
            raise _refusal(services, record)
        return extra_writes(trial_id)

    message = PartialDeletionRequested(
        uuid,
        patterns,
        earlier=record.deleted_patterns,
        files=len(folder.files) - len(chosen),
        size_bytes=sum(file.size for file in folder.files) - sum(file.size for file in chosen),
        instead=_replacement(services, trial_id, uuid),
    )
    services.engine.execute_command(
        addresses.trial(trial_id), message, by=caller.user, extra_writes=check_reply
    )
    return trial_id


def delete_tensorboard_files(
    services: Services, experiment_id: int, caller: Principal, extra_writes: ExtraWrites
) -> int:
    """Delete the files for TensorBoard of an ended experiment and return its id.

    It obeys the cluster's limit of deletions. What is left after REQUEST_SECONDS_MAX is deleted by
    the next requests.

    Raises:
        RequestError: not_found; forbidden, for another's; conflict, while it has not ended;
            unavailable, if it cannot be done, or not in one request.
    """
    check_may_delete(services, experiment_id, caller)
    state, _ = experiments.get_experiment(services, experiment_id)
    if not state.status.is_final:
        text = f"experiment {experiment_id} is {state.status}: its trials may still write there"
        raise RequestError(Code.CONFLICT, text)
    work = remove_tensorboard_files(stores_of(services), experiment_id)
    limiter = DeletionRateLimiter(lambda: deletion_limit(services.table))
    until = time.monotonic() + REQUEST_SECONDS_MAX
    try:
        is_done = run_steps(work, limiter, lambda: until - time.monotonic())
    except (OSError, CollectionFailed) as error:
        text = f"the files cannot be removed: {error}"
        raise RequestError(Code.UNAVAILABLE, text) from None
    if not is_done:
        text = "some of the files are deleted, the rest has to wait for the cluster's limit"
        raise RequestError(Code.UNAVAILABLE, f"{text} of deletions; ask again")
    writes = extra_writes(experiment_id)
    if writes:
        services.table.commit(writes)
    return experiment_id


def _check_patterns(patterns: tuple[str, ...]) -> None:
    """Check that a checkpoint's record may hold so many patterns; RequestError invalid."""
    if len(patterns) > PATTERNS_MAX:
        text = (
            f"with those by which files were deleted before there are {len(patterns)} patterns; "
            f"the limit is {PATTERNS_MAX}"
        )
        raise invalid("glob", text, "choose folders, such as 'optimizer/**', or delete all of it")


def _replacement(services: Services, trial_id: int, uuid: str) -> str:
    """The checkpoint that is the newest of the trial without the one of that UUID; "" for none."""
    others = [one for one in completed_checkpoints(services.table, trial_id) if one.uuid != uuid]
    newest = newest_checkpoint(others)
    return newest.uuid if newest else ""


def _check_deleted(services: Services, record: CheckpointRecord) -> None:
    """Raise RequestError conflict, with the reason, unless the checkpoint is deleted already."""
    reference = record.checkpoint
    now = services.engine.read_part(
        addresses.trial(reference.trial_id), CHECKPOINT_PARTS + reference.uuid
    )
    if not isinstance(now, CheckpointRecord) or now.state is not CheckpointState.DELETED:
        raise _refusal(services, record)


def _refusal(services: Services, record: CheckpointRecord) -> RequestError:
    """The conflict that says why nothing of a checkpoint can be deleted."""
    why = find_need(services, record) or "it was changed meanwhile; ask again"
    text = f"checkpoint {record.checkpoint.uuid} cannot be deleted: {why}"
    return RequestError(Code.CONFLICT, text)
