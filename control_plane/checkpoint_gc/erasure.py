"""The erasure of the rows and objects of a deleted experiment and its trials.

The erasure begins after the removal of all checkpoint files. Every step may be repeated: the
experiment's own parts list the trials and are deleted last, and each trial's rows share a
partition.
"""

from collections.abc import Iterable
from contextlib import suppress
from itertools import islice

from control_plane.actors import addresses
from control_plane.actors.experiment.state import ExperimentState
from control_plane.actors.messages.trial import TrialDeleted
from control_plane.actors.step import CommandRefused
from control_plane.actors.trial.checkpoints import CHECKPOINTS
from control_plane.actors.trial.state import TrialState
from control_plane.agents.logs import NAMESPACE as LOGS
from control_plane.agents.metric_rows import NAMESPACE as METRICS
from control_plane.checkpoint_gc.checkpoint_inventory import checkpoint_records, trial_ids
from control_plane.checkpoint_gc.package_archives import remove_objects, remove_package_archives
from control_plane.checkpoint_gc.pins import expire_pins
from control_plane.checkpoint_gc.rate_limit import NO_FILES, Steps, remove_checkpoint_folder
from control_plane.checkpoint_gc.stores import CollectionFailed, Stores
from control_plane.checkpoint_gc.upload_sessions import UPLOADS_EPOCH
from control_plane.engine.head import HEAD, PARTS
from control_plane.engine.journal import JOURNAL
from control_plane.objects.store import ObjectKey
from control_plane.rows.experiment_rows import EXPERIMENT_REPLACEMENT
from control_plane.state.row_ranges import read_rows
from control_plane.state.table import OPERATIONS_MAX, Delete, Expect, Key, StateTable
from detcloud.shared.event_parts import TENSORBOARD_FOLDER

_FIRST, _LAST = " ", "\x7f"


def erase_experiment(stores: Stores, experiment: ExperimentState) -> Steps:
    """Delete the data of a deleted experiment, in steps.

    Delete the files for TensorBoard, the archives of packages, empty checkpoint folders, and each
    trial's logs, metrics and rows except the head row. Each trial first gets a TrialDeleted, and
    the pin rows of its checkpoints expire. Then delete the experiment's journal, the parts of its
    search and the rows of its replacements. The experiment itself deletes its other parts, its
    listing row and its row of `collections` later. The caller has removed the files of the
    checkpoints.

    Raises:
        CollectionFailed: a store cannot be opened, or a file or object cannot be deleted.
        TableError: the state table failed.
        CommandRefused: a trial refuses its deletion.
    """
    try:
        yield from remove_tensorboard_files(stores, experiment.experiment_id)
        yield from remove_package_archives(stores, experiment.experiment_id)
        for trial_id in trial_ids(stores.engine, experiment):
            _remove_empty_folders(stores, experiment.experiment_id, trial_id)
            yield from _erase_trial(stores, trial_id)
    except OSError as error:
        raise CollectionFailed(f"cannot remove its data: {error}") from None
    address = addresses.experiment(experiment.experiment_id)
    table = stores.engine.table
    for kind in (JOURNAL, f"{PARTS}search/", EXPERIMENT_REPLACEMENT.sort):
        keys = (row.key for row in read_rows(table, address, kind, f"{kind}~"))
        yield from delete_rows(table, keys)


def remove_tensorboard_files(stores: Stores, experiment_id: int) -> Steps:
    """Remove the experiment's folder of files for TensorBoard from the checkpoint store.

    A missing folder or store is not an error. Raises CollectionFailed if the store cannot be
    opened, and OSError if a file cannot be removed.
    """
    # The root of the store is missing if nothing was ever written.
    with suppress(FileNotFoundError):
        parts = (TENSORBOARD_FOLDER, str(experiment_id))
        files = stores.checkpoint_files(experiment_id, purge=True)
        yield from remove_checkpoint_folder(files, parts)


def _remove_empty_folders(stores: Stores, experiment_id: int, trial_id: int) -> None:
    """Remove the empty folders of a trial's epochs, and the folders above that are then empty.

    Checkpoints that are removed while the trial runs leave such folders. A missing store is not an
    error. Raises CollectionFailed if the store cannot be opened, and OSError.
    """
    state = stores.engine.read_state(addresses.trial(trial_id))
    epochs = state.epoch if isinstance(state, TrialState) else 0
    with suppress(FileNotFoundError):
        for epoch in range(UPLOADS_EPOCH, epochs + 1):
            parts = (str(experiment_id), str(trial_id), str(epoch))
            stores.checkpoint_files(experiment_id).remove_empty_folders(parts)


def _erase_trial(stores: Stores, trial_id: int) -> Steps:
    """Delete a trial's logs, metrics, checkpoint rows and other rows, except the head row.

    First send the command TrialDeleted to the trial. Then delete the objects with logs and metrics
    from the object store, set an expiry on the pin rows of the trial's checkpoints, and delete the
    rows. If the trial does not exist, skip only the command: objects and rows that remain are still
    deleted. Raises OSError, TableError and CommandRefused.
    """
    engine, address = stores.engine, addresses.trial(trial_id)
    # TrialDeleted comes first, so that no query finds a trial with missing data.
    try:
        engine.execute_command(address, TrialDeleted())
    except CommandRefused as refused:
        if refused.code != "not_found":
            raise
    yield NO_FILES
    for kept in (LOGS, METRICS):
        yield from remove_objects(stores.objects, ObjectKey(f"{kept}/{trial_id}"))
    uuids = [record.checkpoint.uuid for record in checkpoint_records(engine.table, trial_id)]
    for start in range(0, len(uuids), OPERATIONS_MAX):
        expire_pins(engine.table, uuids[start : start + OPERATIONS_MAX], engine.clock())
        yield NO_FILES
    yield from delete_rows(engine.table, (Key(CHECKPOINTS, uuid) for uuid in uuids))
    rows = read_rows(engine.table, address, _FIRST, _LAST)
    yield from delete_rows(engine.table, (row.key for row in rows if row.key.sort != HEAD))


def delete_rows(table: StateTable, keys: Iterable[Key]) -> Steps:
    """Delete rows in commits of OPERATIONS_MAX, a commit per step. Raises TableError.

    Missing rows are not an error.
    """
    left = iter(keys)
    while some := list(islice(left, OPERATIONS_MAX)):
        table.commit([Delete(key, Expect.ANYTHING) for key in some])
        yield NO_FILES
