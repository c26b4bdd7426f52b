"""The removal of checkpoints' files: of those that are condemned, and of uploads cut short.

The folder of a checkpoint is named by ids that the cluster gave and a checked UUID, never by a
path that a trial reported.
"""

import logging
import re
from collections.abc import Iterator
from itertools import groupby, islice

from control_plane.actors import addresses
from control_plane.actors.experiment_state import ExperimentState
from control_plane.actors.trial_checkpoints import (
    CHECKPOINT_PARTS,
    COLLECTIONS,
    CheckpointRecord,
    CheckpointState,
    removal_sort,
)
from control_plane.actors.trial_messages import COLLECTED_MAX, CheckpointFilesDeleted
from control_plane.actors.trial_state import TrialState
from control_plane.agents.sessions import INTENTS
from control_plane.collection.pins import let_expire
from control_plane.collection.stores import CheckpointFiles, CollectionFailed, Stores
from control_plane.collection.survey import records_of, rows_of, trial_ids
from control_plane.dispatch.engine import Engine
from control_plane.dispatch.kinds import parse_json
from control_plane.state.table import Delete, Expect, Row, StateTable

log = logging.getLogger(__name__)

_EPOCH = re.compile(r"[1-9][0-9]{0,11}")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def condemned_files(stores: Stores, experiment_id: int, *, ended: bool) -> Iterator[None]:
    """Removes the files of the experiment's condemned checkpoints and says so to their trials.

    Of an experiment that has `ended`, folders that are left empty go too. What cannot be removed
    holds up nothing else.

    Raises:
        CollectionFailed: some could not be removed, or the store is not there.
    """
    failures: list[str] = []
    first, last = removal_sort(experiment_id, ""), removal_sort(experiment_id, "~")
    rows = rows_of(stores.engine.table, COLLECTIONS, first, last)
    while some := list(islice(rows, 100)):
        some.sort(key=lambda row: int(row.body))
        for trial_id, of_trial in groupby(some, key=lambda row: int(row.body)):
            yield from _removed(stores, experiment_id, trial_id, list(of_trial), ended, failures)
    if failures:
        raise CollectionFailed(
            f"the files of {len(failures)} checkpoints cannot be removed: {failures[0]}"
        )


def uploads_cut_short(stores: Stores, experiment: ExperimentState) -> Iterator[None]:
    """Removes the files of checkpoints that were begun and never completed by trials that have
    ended. Raises CollectionFailed.
    """
    for trial_id in trial_ids(stores.engine, experiment):
        for epoch, uuid in _cut_short(stores, trial_id):
            files = stores.files(experiment.experiment_id)
            parts = (str(experiment.experiment_id), str(trial_id), str(epoch), uuid)
            try:
                yield from files.remove(parts, prune=True)
            except FileNotFoundError:
                # Nothing can lie in a store that is not there.
                return
            except OSError as error:
                raise CollectionFailed(_said(files, parts, error)) from None
        yield


def _removed(
    stores: Stores,
    experiment_id: int,
    trial_id: int,
    rows: list[Row],
    ended: bool,
    failures: list[str],
) -> Iterator[None]:
    """Removes the files of one trial's condemned checkpoints; adds to `failures`."""
    files = stores.files(experiment_id)
    address = addresses.trial(trial_id)
    done: list[str] = []
    parents: set[tuple[str, ...]] = set()
    for row in rows:
        uuid = row.key.sort.rpartition("/")[2]
        record = stores.engine.part(address, CHECKPOINT_PARTS + uuid)
        if not isinstance(record, CheckpointRecord) or record.state is CheckpointState.DELETED:
            _forget(stores.engine.table, row)
            continue
        parts = _parts(experiment_id, record)
        try:
            if parts:
                yield from files.remove(parts, prune=ended)
                parents.add(parts[:-1])
            done.append(uuid)
        except OSError as error:
            failures.append(_said(files, parts, error))
        yield
    try:
        for parent in parents:
            files.sync(parent)
    except OSError as error:
        failures.append(_said(files, (), error))
        return
    yield from _told(stores.engine, address, done)


def _told(engine: Engine, address: str, uuids: list[str]) -> Iterator[None]:
    """Tells a trial which checkpoints' files are gone."""
    for start in range(0, len(uuids), COLLECTED_MAX):
        some = tuple(uuids[start : start + COLLECTED_MAX])
        engine.command(address, CheckpointFilesDeleted(some))
        let_expire(engine.table, some, engine.clock())
        yield


def _parts(experiment_id: int, record: CheckpointRecord) -> tuple[str, ...]:
    """Where the checkpoint's files are; empty for one whose recorded place is not its own."""
    reference = record.checkpoint
    parts = tuple(reference.path.split("/"))
    own = (str(experiment_id), str(reference.trial_id), reference.uuid)
    is_plain = len(parts) == 4 and _EPOCH.fullmatch(parts[2]) and _UUID.fullmatch(parts[3])
    if is_plain and (*parts[:2], parts[3]) == own:
        return parts
    log.warning("checkpoint %s is recorded at %.200r: left alone", reference.uuid, reference.path)
    return ()


def _forget(table: StateTable, row: Row) -> None:
    """Takes out a row whose checkpoint needs nothing any more."""
    table.commit((Delete(row.key, Expect.ANYTHING),))


def _cut_short(stores: Stores, trial_id: int) -> list[tuple[int, str]]:
    """Epoch and UUID of each upload that an ended trial began and did not complete."""
    address = addresses.trial(trial_id)
    begun: dict[str, int] = {}
    for row in rows_of(stores.engine.table, address, INTENTS, f"{INTENTS}~"):
        line = parse_json(row.body)
        uuid = line.get("uuid") if isinstance(line, dict) else None
        if isinstance(uuid, str) and _UUID.fullmatch(uuid):
            begun[uuid] = int(row.key.sort.split("#")[1])
    # After the rows, so that none of them is of an allocation which the trial had later.
    state = stores.engine.state(address) if begun else None
    if not isinstance(state, TrialState) or not state.status.final:
        return []
    known = {record.checkpoint.uuid for record in records_of(stores.engine.table, trial_id)}
    return [(epoch, uuid) for uuid, epoch in begun.items() if uuid not in known]


def _said(files: CheckpointFiles, parts: tuple[str, ...], error: OSError) -> str:
    return f"{files.place(parts)}: {error.strerror or error}"
