"""Withdrawal of a checkpoint's damage after a user has verified the files."""

from control_plane.access.principals import Principal
from control_plane.actors import addresses
from control_plane.actors.messages.trial import CheckpointVerified
from control_plane.actors.trial.checkpoints import CheckpointState
from control_plane.errors import Code, RequestError
from control_plane.queries.checkpoint import get_checkpoint
from control_plane.queries.checkpoint_files import check_stored, checkpoint_folder, store_error
from control_plane.services import Services
from control_plane.state.table import Write
from control_plane.usecases.idempotency import ExtraWrites


def clear_damage(
    services: Services, uuid: str, caller: Principal, extra_writes: ExtraWrites
) -> int:
    """Change a damaged checkpoint back to complete; return the trial's id.

    The caller must have read all files before. In any state of the checkpoint, the stored
    manifest must be the recorded one, and the store must have each file with its size. For a
    checkpoint that is not damaged, commit only the extra writes.

    Args:
        services: the services with the engine and the state table.
        uuid: the full UUID.
        caller: the user.
        extra_writes: returns further writes of the commit, given the trial's id.

    Raises:
        RequestError: not_found, if the checkpoint does not exist or its files were deleted.
            invalid, if `uuid` is not a UUID. conflict, if the manifest differs from the record, a
            file is missing or has another size, or the state changed in the meantime. unavailable,
            if the store does not answer or the trial is too busy.
        Conflict: the condition of an extra write does not hold; nothing was written.
    """
    record, _ = get_checkpoint(services, uuid)
    trial_id = record.checkpoint.trial_id
    try:
        folder = checkpoint_folder(services, uuid)
        check_stored(folder)
    except OSError as error:
        raise store_error(error) from None

    if record.state is not CheckpointState.DAMAGED:
        if writes := extra_writes(trial_id):
            services.table.commit(writes)
        return trial_id

    def check_reply(reply: object) -> tuple[Write, ...]:
        if reply != CheckpointState.COMPLETED:
            text = f"checkpoint {uuid} is {reply} by now: the damage cannot be withdrawn"
            raise RequestError(Code.CONFLICT, text)
        return extra_writes(trial_id)

    services.engine.execute_command(
        addresses.trial(trial_id),
        CheckpointVerified(uuid),
        by=caller.user,
        extra_writes=check_reply,
    )
    return trial_id
