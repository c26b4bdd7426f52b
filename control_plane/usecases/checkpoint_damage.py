"""The mark of damage is taken back from a checkpoint whose files are found to be right."""

from control_plane.access.principals import Principal
from control_plane.actors import addresses
from control_plane.actors.messages.trial import CheckpointVerified
from control_plane.actors.trial.checkpoints import CheckpointState
from control_plane.errors import Code, RequestError
from control_plane.queries.checkpoint import get_checkpoint
from control_plane.queries.checkpoint_files import check_stored, checkpoint_folder, store_error
from control_plane.services import Services
from control_plane.state.table import Write
from control_plane.usecases.experiment_deletion import check_is_owner
from control_plane.usecases.idempotency import ExtraWrites


def clear_damage(
    services: Services, uuid: str, caller: Principal, extra_writes: ExtraWrites
) -> int:
    """Take back that a checkpoint is damaged, and return its trial's id; again is no error.

    The caller has read its files. What a request can find out is checked here: that the manifest is
    the one that was recorded, and that each of its files is there with its size.

    Raises:
        RequestError: not_found; forbidden, for another's; conflict, if something is missing or of
            another size; unavailable, if the store does not answer.
    """
    record, experiment_id = get_checkpoint(services, uuid)
    check_is_owner(services, experiment_id, caller, "take back that its checkpoint is damaged")
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
            text = f"checkpoint {uuid} is {reply} by now: nothing can be taken back"
            raise RequestError(Code.CONFLICT, text)
        return extra_writes(trial_id)

    services.engine.execute_command(
        addresses.trial(trial_id),
        CheckpointVerified(uuid),
        by=caller.user,
        extra_writes=check_reply,
    )
    return trial_id
