"""Uploads of checkpoints by users: begin or find an upload, and list the stored files.

An upload begins, stores its files (upload_files.py), and is completed (upload_completion.py). Until
then the checkpoint is not listed. The client derives the UUID from the content, so that an
interrupted upload can be resumed.
"""

from dataclasses import dataclass

from pydantic_core import to_json

from control_plane.actors import addresses
from control_plane.actors.trial.checkpoints import (
    CHECKPOINT_PARTS,
    CheckpointRecord,
    CheckpointState,
)
from control_plane.agents.sessions import INTENTS
from control_plane.checkpoint_gc.upload_sessions import UPLOADS_EPOCH
from control_plane.checkpoint_stores.checkpoint_files import CheckpointFiles
from control_plane.checkpoint_stores.trial_storage import open_checkpoint_files
from control_plane.errors import Code, RequestError
from control_plane.queries import experiment as experiments
from control_plane.queries import trial as trials
from control_plane.queries.checkpoint_files import experiment_storage, store_error
from control_plane.services import Services
from control_plane.state.table import Expect, Key, Put
from control_plane.usecases.experiment_deletion import DELETION_STATUSES


@dataclass(frozen=True)
class Upload:
    """The upload of a checkpoint by a user, begun or not."""

    experiment_id: int
    trial_id: int
    """The trial that the checkpoint will belong to."""
    uuid: str
    """The UUID of the checkpoint."""
    state: CheckpointState | None
    """The checkpoint's state; None if the checkpoint is not recorded yet."""

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the names of the nested folders of the checkpoint's files in the store."""
        return str(self.experiment_id), str(self.trial_id), str(UPLOADS_EPOCH), self.uuid

    @property
    def path(self) -> str:
        """Return the folder of the checkpoint's files in the store: EXPERIMENT/TRIAL/EPOCH/UUID.

        The epoch of every upload is UPLOADS_EPOCH.
        """
        return "/".join(self.parts)


def begin_upload(services: Services, trial_id: int, uuid: str) -> Upload:
    """Return a new or resumed upload. Store an intent row for the trial and the UUID.

    By this row, a later collection removes the files of an upload that is never completed. Store
    nothing, and only return the upload, if the checkpoint is recorded already. No file is written
    to the store.

    Raises:
        RequestError: not_found, if the trial or its experiment does not exist; conflict, if the
            experiment is being deleted or its store cannot be opened.
    """
    upload = find_upload(services, trial_id, uuid)
    if upload.state is None:
        open_store(services, upload)
        sort = f"{INTENTS}{UPLOADS_EPOCH:08d}#upload#{uuid}"
        body = to_json({"uuid": uuid, "begun_ms": services.now_ms()})
        services.table.commit(
            (Put(Key(addresses.trial(trial_id), sort), 1, body, Expect.ANYTHING),)
        )
    return upload


def find_upload(services: Services, trial_id: int, uuid: str) -> Upload:
    """Return the upload of a checkpoint to a trial, without writing anything.

    The upload need not have begun. `state` of the result is the state of the checkpoint's record,
    or None without a record.

    Raises:
        RequestError: not_found, if the trial or its experiment does not exist; conflict, if the
            experiment is being deleted.
    """
    experiment_id = trials.get_trial(services, trial_id).experiment_id
    state, _ = experiments.get_experiment(services, experiment_id)
    if state.status in DELETION_STATUSES:
        raise RequestError(Code.CONFLICT, f"experiment {experiment_id} is being deleted")
    record = services.engine.read_part(addresses.trial(trial_id), CHECKPOINT_PARTS + uuid)
    known = record.state if isinstance(record, CheckpointRecord) else None
    return Upload(experiment_id, trial_id, uuid, known)


def open_store(services: Services, upload: Upload) -> CheckpointFiles:
    """Open the checkpoint store of an upload that is not recorded yet.

    Raises:
        RequestError: conflict, if the checkpoint is already recorded, the cluster must not call the
            store, or the store cannot be opened; not_found, if the experiment does not exist.
    """
    if upload.state is not None:
        text = f"checkpoint {upload.uuid} is {upload.state} already"
        raise RequestError(Code.CONFLICT, text)
    try:
        return open_checkpoint_files(experiment_storage(services, upload.experiment_id))
    except OSError as error:
        raise RequestError(Code.CONFLICT, str(error)) from None


def stored_files(services: Services, upload: Upload) -> list[tuple[str, int]]:
    """Return the path and size in bytes of each stored file of an upload, sorted by path.

    Empty if the store has no file of the upload, or no folder at all.

    Raises:
        RequestError: conflict, if the checkpoint is already recorded or the store cannot be opened;
            unavailable, if the store does not answer.
    """
    try:
        return sorted(open_store(services, upload).list_files(upload.parts))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise store_error(error) from None
