"""The removal of the files of marked checkpoints and of incomplete uploads.

The folder of a checkpoint is named by ids that the cluster assigned and a checked UUID, never by a
path that a trial reported.
"""

import logging
import re
from collections.abc import Collection, Mapping
from functools import cache
from itertools import groupby, islice

from control_plane.actors import addresses
from control_plane.actors.collection_rows import COLLECTIONS, removal_sort_key
from control_plane.actors.experiment.state import ExperimentState
from control_plane.actors.messages.trial import COLLECTED_MAX, CheckpointFilesDeleted
from control_plane.actors.messages.trial_deletions import PartialDeletionEnded
from control_plane.actors.trial.checkpoints import (
    CHECKPOINT_PARTS,
    CheckpointRecord,
    CheckpointState,
)
from control_plane.actors.trial.state import TrialState
from control_plane.agents.sessions import INTENTS
from control_plane.checkpoint_gc.checkpoint_inventory import checkpoint_records, trial_ids
from control_plane.checkpoint_gc.pins import expire_pins, read_pins
from control_plane.checkpoint_gc.rate_limit import (
    NO_FILES,
    Steps,
    remove_checkpoint_folder,
    remove_chosen_files,
)
from control_plane.checkpoint_gc.stores import CollectionFailed, Stores
from control_plane.checkpoint_gc.upload_sessions import trial_sessions
from control_plane.checkpoint_stores.checkpoint_files import CheckpointFiles
from control_plane.engine.engine import Engine
from control_plane.json_gate import parse_stored_object
from control_plane.state.row_ranges import read_rows
from control_plane.state.table import Delete, Expect, Row, StateTable
from detcloud.shared.bucket_errors import StoreBusy
from detcloud.shared.plurals import count_text

log = logging.getLogger(__name__)

EPOCH = re.compile(r"0|[1-9][0-9]{0,11}")
# The age at which a user's incomplete upload counts as abandoned.
UPLOAD_MS_MAX = 24 * 3600 * 1000
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def remove_marked_files(stores: Stores, experiment_id: int, *, ended: bool) -> Steps:
    """Remove the files of an experiment's marked checkpoints, and report the removals to trials.

    For a partially deleted checkpoint, remove only the files that the user deleted. After a
    failure, continue with the other checkpoints, unless the store asks for fewer requests.

    Args:
        ended: whether the experiment has ended. Then folders that become empty are removed as well.

    Raises:
        CollectionFailed: files of a checkpoint cannot be removed, or the store cannot be opened.
        CommandRefused: a trial refuses a report.
        TableError: the state table failed.
    """
    failures: list[str] = []
    first, last = removal_sort_key(experiment_id, ""), removal_sort_key(experiment_id, "~")
    rows = read_rows(stores.engine.table, COLLECTIONS, first, last)
    while some := list(islice(rows, 100)):
        some.sort(key=lambda row: int(row.body))
        for trial_id, of_trial in groupby(some, key=lambda row: int(row.body)):
            yield from _remove_trial_files(
                stores, experiment_id, trial_id, list(of_trial), ended, failures
            )
    if failures:
        failed = count_text(len(failures), "checkpoint")
        raise CollectionFailed(f"the files of {failed} cannot be deleted: {failures[0]}")


def remove_incomplete_uploads(
    stores: Stores, experiment: ExperimentState, *, delete: bool = False
) -> Steps:
    """Remove the files of incomplete uploads to an experiment's ended trials.

    Also abort the sessions of these uploads in the store and delete the sessions' rows. The intent
    rows of the uploads stay. A trial's own upload is removed at any age, a user's upload only after
    UPLOAD_MS_MAX. Folders that become empty are removed as well. Stop silently if the store's
    folder or bucket does not exist.

    Args:
        delete: also remove users' uploads of any age, and abort all sessions of every trial, even
            of trials that have not ended.

    Raises:
        CollectionFailed: the store cannot be opened, a file cannot be removed, or a session cannot
            be aborted.
        TableError: the state table failed.
    """
    for trial_id in trial_ids(stores.engine, experiment):
        incomplete = _incomplete_uploads(stores, trial_id, delete)
        given_up = None if delete else {uuid for _, uuid in incomplete}
        yield from _end_sessions(stores, experiment.experiment_id, trial_id, given_up)
        for epoch, uuid in incomplete:
            files = stores.checkpoint_files(experiment.experiment_id, purge=True)
            parts = (str(experiment.experiment_id), str(trial_id), str(epoch), uuid)
            try:
                yield from remove_checkpoint_folder(files, parts, prune=True)
            except FileNotFoundError:
                # A missing store contains no files.
                return
            except OSError as error:
                raise CollectionFailed(_failure_text(files, parts, error)) from None
        yield NO_FILES


def _end_sessions(
    stores: Stores, experiment_id: int, trial_id: int, given_up: set[str] | None
) -> Steps:
    """Abort the upload sessions of a trial in the store, and delete their rows.

    An aborted upload cannot become a file later. `given_up` are the UUIDs of the uploads to abort;
    None stands for all uploads of the trial. Raises CollectionFailed and TableError.
    """
    for key, uuid, session in trial_sessions(stores.engine.table, trial_id):
        if given_up is not None and uuid not in given_up:
            continue
        files = stores.checkpoint_files(experiment_id)
        try:
            files.end_session(session)
        except OSError as error:
            raise CollectionFailed(
                f"an upload to trial {trial_id} cannot be ended: {error}"
            ) from None
        stores.engine.table.commit((Delete(key, Expect.ANYTHING),))
        yield NO_FILES


def _remove_trial_files(
    stores: Stores,
    experiment_id: int,
    trial_id: int,
    rows: list[Row],
    ended: bool,
    failures: list[str],
) -> Steps:
    """Remove the files of a trial's marked checkpoints, and report the removals to the trial.

    Delete a row if the checkpoint has no record or is deleted already. Append a text for each
    checkpoint that cannot be removed to `failures`.

    Args:
        rows: the removal rows of the trial's checkpoints.
        ended: remove folders that become empty.

    Raises:
        CollectionFailed: the store cannot be opened, or asks for fewer requests.
        CommandRefused: the trial refuses a report.
        TableError: the state table failed.
    """
    pinned = _pinned_checkpoints(stores.engine.table, rows) if stores.purges_versions else set()
    open_files = cache(lambda purge: stores.checkpoint_files(experiment_id, purge=purge))
    done: dict[str, tuple[str, ...]] = {}
    snapshots = set[str]()
    for row in rows:
        uuid = row.key.sort.rpartition("/")[2]
        files = open_files(uuid not in pinned)
        record = stores.engine.read_part(addresses.trial(trial_id), CHECKPOINT_PARTS + uuid)
        if not isinstance(record, CheckpointRecord) or record.state is CheckpointState.DELETED:
            _delete_row(stores.engine.table, row)
            continue
        parts = _folder_parts(experiment_id, record)
        try:
            if record.state is CheckpointState.PARTIALLY_DELETED:
                yield from _remove_part(stores.engine, record, files, parts)
                continue
            if parts:
                yield from remove_checkpoint_folder(files, parts, prune=ended)
            done[uuid] = parts
            snapshots |= {uuid} if record.is_snapshot else set()
        except StoreBusy as error:
            # The store would refuse the requests for the next checkpoints as well.
            raise CollectionFailed(_failure_text(files, parts, error)) from None
        except OSError as error:
            failures.append(_failure_text(files, parts, error))
        yield NO_FILES
        # Reported in small groups, so that little is repeated after a crash.
        if len(done) == COLLECTED_MAX:
            yield from _report_removed(stores.engine, trial_id, files, done, failures)
            done = {}
    if done:
        yield from _report_removed(stores.engine, trial_id, files, done, failures)
    _delete_announcements(stores.engine.table, trial_id, snapshots)


def _delete_announcements(table: StateTable, trial_id: int, uuids: Collection[str]) -> None:
    """Delete the rows that announced the uploads of removed snapshots. Do nothing without UUIDs.

    A notebook saves hundreds of snapshots. An announcement that stays is harmless: the next
    collection finds no files. Raises TableError.
    """
    if not uuids:
        return
    for row in read_rows(table, addresses.trial(trial_id), INTENTS, f"{INTENTS}~"):
        if parse_stored_object(row.body).get("uuid") in uuids:
            _delete_row(table, row)


def _pinned_checkpoints(table: StateTable, rows: list[Row]) -> set[str]:
    """Return the UUIDs of pinned checkpoints among removal rows, and log a warning for each.

    Nothing marks a pinned checkpoint for removal, unless rows are damaged or were restored from an
    older backup. The files of such a checkpoint therefore stay as older versions in a bucket that
    keeps versions. Raises TableError.
    """
    uuids = [row.key.sort.rpartition("/")[2] for row in rows]
    pinned = set()
    for uuid, pin in zip(uuids, read_pins(table, uuids), strict=True):
        if pin.is_held():
            log.warning(
                "checkpoint %s is marked for deletion, although %s: a bucket with versions keeps "
                "its files",
                uuid,
                pin.holders_text(),
            )
            pinned.add(uuid)
    return pinned


def _remove_part(
    engine: Engine, record: CheckpointRecord, files: CheckpointFiles, parts: tuple[str, ...]
) -> Steps:
    """Remove the files that a user deleted from a checkpoint, and report the removal to the trial.

    The record's patterns choose the files. After the report, let the checkpoint's pin row expire.
    Raises OSError if a file cannot be removed. Raises CommandRefused if the trial refuses the
    report, and TableError.

    Args:
        parts: the result of `_folder_parts`. If empty, remove nothing, but report.
    """
    reference, patterns = record.checkpoint, record.deleted_patterns
    if parts:
        yield from remove_chosen_files(files, parts, patterns)
    ended = PartialDeletionEnded(reference.uuid, patterns)
    engine.execute_command(addresses.trial(reference.trial_id), ended)
    expire_pins(engine.table, (reference.uuid,), engine.clock())


def _report_removed(
    engine: Engine,
    trial_id: int,
    files: CheckpointFiles,
    done: Mapping[str, tuple[str, ...]],
    failures: list[str],
) -> Steps:
    """Make the removal of checkpoints durable, then report the removal to the trial.

    After the report, let the checkpoints' pin rows expire. If the removal cannot be made durable,
    append the reason to `failures`, report nothing and expire no pins. Raises CommandRefused if the
    trial refuses the report, and TableError.

    Args:
        done: the parts of each removed folder, by the checkpoint's UUID. A checkpoint without a
            folder to remove has the parts (), and is reported as well.
    """
    try:
        for parent in {parts[:-1] for parts in done.values() if parts}:
            files.sync_folder(parent)
    except OSError as error:
        failures.append(_failure_text(files, (), error))
        return
    uuids = tuple(done)
    engine.execute_command(addresses.trial(trial_id), CheckpointFilesDeleted(uuids))
    expire_pins(engine.table, uuids, engine.clock())
    yield NO_FILES


def _folder_parts(experiment_id: int, record: CheckpointRecord) -> tuple[str, ...]:
    """Return the names of the folders that lead to a checkpoint's files.

    If the recorded path is not EXPERIMENT/TRIAL/EPOCH/UUID with this checkpoint's ids, return an
    empty tuple and log a warning.
    """
    reference = record.checkpoint
    parts = tuple(reference.path.split("/"))
    own = (str(experiment_id), str(reference.trial_id), reference.uuid)
    is_plain = len(parts) == 4 and EPOCH.fullmatch(parts[2]) and UUID.fullmatch(parts[3])
    if is_plain and (*parts[:2], parts[3]) == own:
        return parts
    log.warning(
        "checkpoint %s is recorded at %.200r, outside its folder: not deleted",
        reference.uuid,
        reference.path,
    )
    return ()


def _delete_row(table: StateTable, row: Row) -> None:
    """Delete a row, even if the row has changed since. A missing row is not an error.

    Raises TableError.
    """
    table.commit((Delete(row.key, Expect.ANYTHING),))


def _incomplete_uploads(stores: Stores, trial_id: int, delete: bool) -> list[tuple[int, str]]:
    """Return the epoch and the UUID of each incomplete upload to an ended trial.

    Return an empty list if the trial has not ended. Skip uploads that a user began less than
    UPLOAD_MS_MAX ago, unless `delete` is set. Skip checkpoints with a record. Raises TableError.
    """
    since_ms = stores.engine.clock() - UPLOAD_MS_MAX
    address = addresses.trial(trial_id)
    begun: dict[str, int] = {}
    for row in read_rows(stores.engine.table, address, INTENTS, f"{INTENTS}~"):
        line = parse_stored_object(row.body)
        uuid, begun_ms = line.get("uuid"), line.get("begun_ms", 0)
        if isinstance(uuid, str) and UUID.fullmatch(uuid):
            if isinstance(begun_ms, int) and begun_ms > since_ms and not delete:
                continue
            begun[uuid] = int(row.key.sort.split("#")[1])
    # The state is read after the rows: if the trial has ended by now, no row is of a later run.
    state = stores.engine.read_state(address) if begun else None
    if not isinstance(state, TrialState) or not state.status.is_final:
        return []
    known = {record.checkpoint.uuid for record in checkpoint_records(stores.engine.table, trial_id)}
    return [(epoch, uuid) for uuid, epoch in begun.items() if uuid not in known]


def _failure_text(files: CheckpointFiles, parts: tuple[str, ...], error: OSError) -> str:
    return f"{files.location_text(parts)}: {error.strerror or error}"
