"""The erasure of the rows and objects that a deleted experiment and its trials left.

It begins once no file of a checkpoint is left. Every step may be repeated: a trial's rows are found
by its partition, and the trials by the experiment's own parts, which go last.
"""

from collections.abc import Iterable
from contextlib import suppress
from itertools import count, islice

from control_plane.actors import addresses
from control_plane.actors.experiment.state import ExperimentState
from control_plane.actors.messages.trial import TrialDeleted
from control_plane.actors.step import CommandRefused
from control_plane.actors.trial.checkpoints import CHECKPOINTS
from control_plane.actors.trial.state import TrialState
from control_plane.agents.logs import NAMESPACE as LOGS
from control_plane.agents.metric_rows import NAMESPACE as METRICS
from control_plane.checkpoint_gc.checkpoint_inventory import (
    checkpoint_records,
    read_rows,
    trial_ids,
)
from control_plane.checkpoint_gc.pins import expire_pins
from control_plane.checkpoint_gc.rate_limit import (
    BUSY_ANSWERS_MAX,
    NO_FILES,
    ONE_FILE,
    STORE_BUSY,
    Steps,
    remove_checkpoint_folder,
)
from control_plane.checkpoint_gc.stores import CollectionFailed, Stores
from control_plane.checkpoint_gc.upload_sessions import UPLOADS_EPOCH
from control_plane.engine.head import HEAD, PARTS
from control_plane.engine.journal import JOURNAL
from control_plane.objects.store import ObjectKey, ObjectStore
from control_plane.state.table import OPERATIONS_MAX, Delete, Expect, Key, StateTable
from detcloud.shared.bucket_errors import StoreBusy
from detcloud.shared.event_parts import TENSORBOARD_FOLDER

_FIRST, _LAST = " ", "\x7f"


def erase_experiment(stores: Stores, experiment: ExperimentState) -> Steps:
    """Erase everything but what the experiment itself removes at its end: its other parts, its
    listing row and its row of `collections`. Raises CollectionFailed.
    """
    try:
        yield from remove_tensorboard_files(stores, experiment.experiment_id)
        for trial_id in trial_ids(stores.engine, experiment):
            _remove_empty_folders(stores, experiment.experiment_id, trial_id)
            yield from _erase_trial(stores, trial_id)
    except OSError as error:
        raise CollectionFailed(f"cannot remove its data: {error}") from None
    address = addresses.experiment(experiment.experiment_id)
    table = stores.engine.table
    for kind in (JOURNAL, f"{PARTS}search/"):
        keys = (row.key for row in read_rows(table, address, kind, f"{kind}~"))
        yield from _delete_rows(table, keys)


def remove_tensorboard_files(stores: Stores, experiment_id: int) -> Steps:
    """Remove the experiment's files for TensorBoard. Raises OSError and CollectionFailed."""
    # There need be no root where nothing was ever written.
    with suppress(FileNotFoundError):
        parts = (TENSORBOARD_FOLDER, str(experiment_id))
        yield from remove_checkpoint_folder(stores.checkpoint_files(experiment_id), parts)


def _remove_empty_folders(stores: Stores, experiment_id: int, trial_id: int) -> None:
    """Remove folders that were left empty where checkpoints were removed while the trial was
    running.
    """
    state = stores.engine.read_state(addresses.trial(trial_id))
    epochs = state.epoch if isinstance(state, TrialState) else 0
    with suppress(FileNotFoundError):
        for epoch in range(UPLOADS_EPOCH, epochs + 1):
            parts = (str(experiment_id), str(trial_id), str(epoch))
            stores.checkpoint_files(experiment_id).remove_empty_folders(parts)


def _erase_trial(stores: Stores, trial_id: int) -> Steps:
    engine, address = stores.engine, addresses.trial(trial_id)
    # First, so that it is not found any more when it is no longer whole.
    try:
        engine.execute_command(address, TrialDeleted())
    except CommandRefused as refused:
        if refused.code != "not_found":
            raise
    yield NO_FILES
    for kept in (LOGS, METRICS):
        yield from _remove_objects(stores.objects, ObjectKey(f"{kept}/{trial_id}"))
    uuids = [record.checkpoint.uuid for record in checkpoint_records(engine.table, trial_id)]
    for start in range(0, len(uuids), OPERATIONS_MAX):
        expire_pins(engine.table, uuids[start : start + OPERATIONS_MAX], engine.clock())
        yield NO_FILES
    yield from _delete_rows(engine.table, (Key(CHECKPOINTS, uuid) for uuid in uuids))
    rows = read_rows(engine.table, address, _FIRST, _LAST)
    yield from _delete_rows(engine.table, (row.key for row in rows if row.key.sort != HEAD))


def _remove_objects(objects: ObjectStore, prefix: ObjectKey) -> Steps:
    """Remove the objects below a prefix, each again once a store that is busy answers again."""
    for listed in objects.list_objects(prefix):
        for answers in count(1):
            try:
                objects.delete(listed.key)
                break
            except StoreBusy:
                if answers > BUSY_ANSWERS_MAX:
                    raise
            yield STORE_BUSY
        yield ONE_FILE


def _delete_rows(table: StateTable, keys: Iterable[Key]) -> Steps:
    """Delete rows, as many at once as a commit holds."""
    left = iter(keys)
    while some := list(islice(left, OPERATIONS_MAX)):
        table.commit([Delete(key, Expect.ANYTHING) for key in some])
        yield NO_FILES
