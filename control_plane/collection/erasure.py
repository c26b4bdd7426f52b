"""The erasure of what a deleted experiment and its trials left in the table and the stores.

It begins once no file of a checkpoint is left. Every step may be repeated: a trial's rows are
found by its partition, and the trials by the experiment's own parts, which go last.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice

from control_plane.actors import addresses
from control_plane.actors.experiment_state import ExperimentState
from control_plane.actors.step import Refused
from control_plane.actors.trial_checkpoints import CHECKPOINTS
from control_plane.actors.trial_messages import TrialDeleted
from control_plane.actors.trial_state import TrialState
from control_plane.agents.logs import NAMESPACE as LOGS
from control_plane.agents.segments import NAMESPACE as METRICS
from control_plane.collection.pins import let_expire
from control_plane.collection.stores import CollectionFailed, Stores
from control_plane.collection.survey import records_of, rows_of, trial_ids
from control_plane.dispatch.head import HEAD, PARTS
from control_plane.dispatch.journal import JOURNAL
from control_plane.objects.store import Key as ObjectKey
from control_plane.state.table import OPERATIONS_MAX, Delete, Expect, Key, StateTable

TENSORBOARD = "tensorboard"
_FIRST, _LAST = " ", "\x7f"


def erased(stores: Stores, experiment: ExperimentState) -> Iterator[None]:
    """Erases everything but what the experiment itself removes at its end: its other parts, its
    place in the listing and its row of `collections`. Raises CollectionFailed.
    """
    try:
        yield from tensorboard_removed(stores, experiment.experiment_id)
        for trial_id in trial_ids(stores.engine, experiment):
            _remove_empty_folders(stores, experiment.experiment_id, trial_id)
            yield from _erased_trial(stores, trial_id)
    except OSError as error:
        raise CollectionFailed(f"its data cannot be removed: {error}") from None
    address = addresses.experiment(experiment.experiment_id)
    table = stores.engine.table
    for kind in (JOURNAL, f"{PARTS}search/"):
        keys = (row.key for row in rows_of(table, address, kind, f"{kind}~"))
        yield from _deleted(table, keys)


def tensorboard_removed(stores: Stores, experiment_id: int) -> Iterator[None]:
    """Removes the experiment's files for TensorBoard. Raises OSError and CollectionFailed."""
    # There need be no root where nothing was ever written.
    with suppress(FileNotFoundError):
        yield from stores.files(experiment_id).remove((TENSORBOARD, str(experiment_id)))


def _remove_empty_folders(stores: Stores, experiment_id: int, trial_id: int) -> None:
    """Removes what is left where checkpoints went while the trial was running."""
    state = stores.engine.state(addresses.trial(trial_id))
    epochs = state.epoch if isinstance(state, TrialState) else 0
    with suppress(FileNotFoundError):
        for epoch in range(1, epochs + 1):
            parts = (str(experiment_id), str(trial_id), str(epoch))
            stores.files(experiment_id).remove_empty(parts)


def _erased_trial(stores: Stores, trial_id: int) -> Iterator[None]:
    engine, address = stores.engine, addresses.trial(trial_id)
    # First, so that it is not found any more when it is no longer whole.
    try:
        engine.command(address, TrialDeleted())
    except Refused as refused:
        if refused.code != "not_found":
            raise
    yield
    for kept in (LOGS, METRICS):
        for listed in stores.objects.list(ObjectKey(f"{kept}/{trial_id}")):
            stores.objects.delete(listed.key)
            yield
    uuids = [record.checkpoint.uuid for record in records_of(engine.table, trial_id)]
    for start in range(0, len(uuids), OPERATIONS_MAX):
        let_expire(engine.table, uuids[start : start + OPERATIONS_MAX], engine.clock())
        yield
    yield from _deleted(engine.table, (Key(CHECKPOINTS, uuid) for uuid in uuids))
    rows = rows_of(engine.table, address, _FIRST, _LAST)
    yield from _deleted(engine.table, (row.key for row in rows if row.key.sort != HEAD))


def _deleted(table: StateTable, keys: Iterable[Key]) -> Iterator[None]:
    """Deletes rows, as many at once as a commit holds."""
    left = iter(keys)
    while some := list(islice(left, OPERATIONS_MAX)):
        table.commit([Delete(key, Expect.ANYTHING) for key in some])
        yield
