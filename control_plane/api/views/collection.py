"""Collections of checkpoints as the API shows them: what one would delete, and one by hand."""

from collections.abc import Generator
from typing import TypeVar

from control_plane.actors import addresses
from control_plane.actors.records import Retention
from control_plane.actors.trial_checkpoints import (
    CHECKPOINT_PARTS,
    PINS,
    CheckpointRecord,
    CheckpointState,
    read_pin,
)
from control_plane.actors.trial_messages import CheckpointsUnwanted
from control_plane.api.bodies import Body
from control_plane.api.errors import ApiError, Code
from control_plane.api.idempotency import Beside
from control_plane.api.services import Services
from control_plane.api.views import checkpoint as checkpoints
from control_plane.api.views import experiment as experiments
from control_plane.collection.erasure import tensorboard_removed
from control_plane.collection.stores import CollectionFailed, Stores
from control_plane.collection.survey import candidates_of, newest_of
from control_plane.collection.work import surveyed
from control_plane.state.table import Key, Write

SHOWN_MAX = 500

T = TypeVar("T")


class Preview(Body):
    """What a collection would do now; `delete` holds the first of `delete_count`."""

    delete: list[checkpoints.Checkpoint]
    delete_count: int
    delete_bytes: int
    keep_count: int
    keep_bytes: int


def preview(
    services: Services,
    experiment_id: int,
    save_experiment_best: int | None,
    save_trial_best: int | None,
    save_trial_latest: int | None,
) -> Preview:
    """A collection with these numbers; None: as configured. ApiError not_found."""
    state, definition = experiments.found(services, experiment_id)
    now = experiments.settings(services, state, definition).retention
    retention = Retention(
        now.save_experiment_best if save_experiment_best is None else save_experiment_best,
        now.save_trial_best if save_trial_best is None else save_trial_best,
        now.save_trial_latest if save_trial_latest is None else save_trial_latest,
    )
    found, going = _exhausted(surveyed(services.engine, state, retention))
    everything = list(found.candidates())
    delete_bytes = sum(one.size_bytes for one in going)
    return Preview(
        delete=[checkpoints.checkpoint(services, one.uuid) for one in going[:SHOWN_MAX]],
        delete_count=len(going),
        delete_bytes=delete_bytes,
        keep_count=len(everything) - len(going),
        keep_bytes=sum(one.size_bytes for one in everything) - delete_bytes,
    )


def condemn(services: Services, uuid: str, by: str, beside: Beside) -> int:
    """Has one checkpoint deleted, if it is not yet, and returns its trial's id.

    Raises:
        ApiError: not_found; conflict, if it is needed.
    """
    record, _ = checkpoints.found(services, uuid)
    trial_id = record.checkpoint.trial_id
    others = [one for one in candidates_of(services.table, trial_id) if one.uuid != uuid]

    def checked(reply: object) -> tuple[Write, ...]:
        if not (isinstance(reply, tuple) and uuid in reply):
            _check_deleted(services, trial_id, uuid)
        return beside(trial_id)

    newest = newest_of(others)
    message = CheckpointsUnwanted((uuid,), instead=newest.uuid if newest else "")
    services.engine.command(addresses.trial(trial_id), message, by=by, beside=checked)
    return trial_id


def remove_tensorboard(services: Services, experiment_id: int, beside: Beside) -> int:
    """Removes the files for TensorBoard of an ended experiment and returns its id.

    Raises:
        ApiError: not_found; conflict, while it has not ended; unavailable, if it cannot be done.
    """
    state, _ = experiments.found(services, experiment_id)
    if not state.status.final:
        text = f"experiment {experiment_id} is {state.status}: its trials may still write there"
        raise ApiError(Code.CONFLICT, text)
    stores = Stores(services.engine, services.objects, services.checkpoints)
    try:
        for _ in tensorboard_removed(stores, experiment_id):
            pass
    except (OSError, CollectionFailed) as error:
        text = f"the files cannot be removed: {error}"
        raise ApiError(Code.UNAVAILABLE, text) from None
    writes = beside(experiment_id)
    if writes:
        services.table.commit(writes)
    return experiment_id


def _check_deleted(services: Services, trial_id: int, uuid: str) -> None:
    """Raises ApiError unless the checkpoint is not DELETING because it is DELETED."""
    record = services.engine.part(addresses.trial(trial_id), CHECKPOINT_PARTS + uuid)
    if isinstance(record, CheckpointRecord) and record.state is CheckpointState.DELETED:
        return
    row = services.table.get(Key(PINS, uuid))
    by = ", ".join(str(number) for number in read_pin(row.body).by) if row else ""
    why = f"experiment {by} started from it" if by else "its trial has not ended and needs it"
    raise ApiError(Code.CONFLICT, f"checkpoint {uuid} cannot be deleted: {why}")


def _exhausted(work: Generator[None, None, T]) -> T:
    """Does work that rests, without a rest."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result
