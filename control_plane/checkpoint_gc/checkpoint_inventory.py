"""The inventory of an experiment's checkpoints; the reader may pause after each trial."""

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field, replace
from heapq import nlargest

from control_plane.actors import addresses
from control_plane.actors.experiment.state import ExperimentState
from control_plane.actors.experiment.trial_summaries import SUMMARIES_PER_PART, Summaries
from control_plane.actors.messages.trial import FALLBACKS_MAX
from control_plane.actors.trial.checkpoints import (
    CHECKPOINT_PARTS,
    CheckpointRecord,
    CheckpointState,
)
from control_plane.actors.trial.state import TrialState
from control_plane.checkpoint_gc.ranking import CheckpointCandidate
from control_plane.checkpoint_gc.rate_limit import NO_FILES, CollectionStep
from control_plane.engine.actor_types import actor_type_at
from control_plane.engine.engine import Engine
from control_plane.engine.head import PARTS
from control_plane.state.row_ranges import read_rows
from control_plane.state.table import StateTable

_OTHERS = {CheckpointState.DAMAGED, CheckpointState.PARTIALLY_DELETED}


@dataclass
class CheckpointInventory:
    """The complete checkpoints of an experiment.

    The inventory is not a snapshot, so decisions are checked again before they are executed.
    """

    by_trial: dict[int, tuple[CheckpointCandidate, ...]] = field(default_factory=dict)
    """The checkpoints by trial id, without trials that have no checkpoint."""
    newest: set[str] = field(default_factory=set)
    """The UUIDs of the checkpoints from which unfinished trials would continue."""

    def candidates(self) -> Iterator[CheckpointCandidate]:
        """Yield all checkpoints of the inventory, grouped by trial."""
        for found in self.by_trial.values():
            yield from found


def inventory_checkpoints(
    engine: Engine, experiment: ExperimentState, *, everything: bool = False
) -> Generator[CollectionStep, None, CheckpointInventory]:
    """Read the checkpoints of all trials of an experiment and return the inventory.

    Yield a step after each trial. `newest` is empty for an experiment that has ended. Raises
    TableError.

    Args:
        everything: include uploaded, damaged and partially deleted checkpoints.
    """
    found = CheckpointInventory()
    for trial_id in trial_ids(engine, experiment):
        candidates = completed_checkpoints(engine.table, trial_id, everything=everything)
        if candidates:
            found.by_trial[trial_id] = candidates
            found.newest.update(_newest_uuids(engine, experiment, trial_id))
        yield NO_FILES
    return found


def trial_ids(engine: Engine, experiment: ExperimentState) -> Iterator[int]:
    """Yield the ids of all trials of an experiment, in the order of the trials' numbers.

    Each part with ids is read when the iteration reaches the part. Raises TableError.
    """
    address = addresses.experiment(experiment.experiment_id)
    for index in range(-(-experiment.trials // SUMMARIES_PER_PART)):
        part = engine.read_part(address, f"trials/{index}")
        for summary in part.trials if isinstance(part, Summaries) else ():
            yield summary.trial_id


def completed_checkpoints(
    table: StateTable, trial_id: int, *, everything: bool = False
) -> tuple[CheckpointCandidate, ...]:
    """Return the complete checkpoints that a trial stored itself; empty for an unknown trial.

    With `everything`, also return snapshots of folders, and uploaded, damaged and partially deleted
    checkpoints. Checkpoints that are deleted or being deleted are never returned. Raises
    TableError.
    """
    states = {CheckpointState.COMPLETED} | (_OTHERS if everything else set())
    return tuple(
        CheckpointCandidate(
            uuid=record.checkpoint.uuid,
            trial_id=trial_id,
            steps=record.checkpoint.steps_completed,
            metric=record.metric,
            created_ms=record.created_ms,
            size_bytes=record.size_bytes,
            files=record.files,
        )
        for record in checkpoint_records(table, trial_id)
        if record.state in states and (everything or not (record.uploaded_by or record.is_snapshot))
    )


def newest_checkpoint(candidates: Iterable[CheckpointCandidate]) -> CheckpointCandidate | None:
    """Return the checkpoint from which the trial would continue, or None without candidates.

    This is the candidate with the most steps; of equal candidates, the last created.
    """
    return max(candidates, key=_order_of_use, default=None)


def fallback_uuids(table: StateTable, trial_id: int, damaged_uuid: str) -> tuple[str, ...]:
    """Return the checkpoints from which a trial could continue instead of a damaged checkpoint.

    Return the UUIDs of at most FALLBACKS_MAX complete checkpoints, those with the most steps first.
    Uploaded checkpoints are excluded. Raises TableError.
    """
    others = (one for one in completed_checkpoints(table, trial_id) if one.uuid != damaged_uuid)
    newest = nlargest(FALLBACKS_MAX, others, key=_order_of_use)
    return tuple(one.uuid for one in newest)


def checkpoint_records(table: StateTable, trial_id: int) -> Iterator[CheckpointRecord]:
    """Yield the records of all checkpoints of a trial, in any state, sorted by UUID.

    An unreadable record is yielded as DAMAGED, without files. Raises TableError.
    """
    address = addresses.trial(trial_id)
    kind, first = actor_type_at(address), PARTS + CHECKPOINT_PARTS
    for row in read_rows(table, address, first, f"{first}~"):
        record = kind.decode_part(row.key.sort.removeprefix(PARTS), row.body)
        assert isinstance(record, CheckpointRecord)
        yield record if record.checkpoint.trial_id else _with_trial(record, trial_id)


def _with_trial(record: CheckpointRecord, trial_id: int) -> CheckpointRecord:
    """Return a copy of a record with `trial_id` as the trial's id.

    The decoder returns a DAMAGED record without the trial's id for an unreadable row.
    """
    return replace(record, checkpoint=replace(record.checkpoint, trial_id=trial_id))


def _order_of_use(one: CheckpointCandidate) -> tuple[int, tuple[int, int, int, str]]:
    """Return a sort key that puts the checkpoint with the most steps last, then the newest.

    The trial would continue from the last checkpoint in this order.
    """
    return one.steps, one.age


def _newest_uuids(engine: Engine, experiment: ExperimentState, trial_id: int) -> Iterator[str]:
    """Yield the UUID of the checkpoint from which an unfinished trial would continue, if any."""
    if experiment.status.is_final:
        return
    state = engine.read_state(addresses.trial(trial_id))
    if isinstance(state, TrialState) and not state.status.is_final and state.checkpoint is not None:
        yield state.checkpoint.uuid
