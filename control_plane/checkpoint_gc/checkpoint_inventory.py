"""The inventory of an experiment's checkpoints, read trial by trial so that the reader may
pause.
"""

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
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
from control_plane.state.table import Row, StateTable

_OTHERS = {CheckpointState.DAMAGED, CheckpointState.PARTIALLY_DELETED}


@dataclass
class CheckpointInventory:
    """The complete checkpoints by trial; `newest`: those that unfinished trials would continue
    from.

    It is not of one moment: what is decided upon it is checked again before it is done.
    """

    by_trial: dict[int, tuple[CheckpointCandidate, ...]] = field(default_factory=dict)
    newest: set[str] = field(default_factory=set)

    def candidates(self) -> Iterator[CheckpointCandidate]:
        """All checkpoints of the inventory."""
        for found in self.by_trial.values():
            yield from found


def inventory_checkpoints(
    engine: Engine, experiment: ExperimentState, *, everything: bool = False
) -> Generator[CollectionStep, None, CheckpointInventory]:
    """Read everything, yielding after each trial, and return the inventory; `everything` as in
    `completed_checkpoints`.
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
    """The ids of all trials of an experiment, by number; they are read as the iteration reaches
    them.
    """
    address = addresses.experiment(experiment.experiment_id)
    for index in range(-(-experiment.trials // SUMMARIES_PER_PART)):
        part = engine.read_part(address, f"trials/{index}")
        for summary in part.trials if isinstance(part, Summaries) else ():
            yield summary.trial_id


def completed_checkpoints(
    table: StateTable, trial_id: int, *, everything: bool = False
) -> tuple[CheckpointCandidate, ...]:
    """The complete checkpoints that the trial stored itself or, with `everything`, also those that
    users uploaded for it, those that were found damaged, and those with some of their files.
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
        if record.state in states and (everything or not record.uploaded_by)
    )


def newest_checkpoint(candidates: Iterable[CheckpointCandidate]) -> CheckpointCandidate | None:
    """The checkpoint that its trial would continue from."""
    return max(candidates, key=_order_of_use, default=None)


def fallback_uuids(table: StateTable, trial_id: int, damaged_uuid: str) -> tuple[str, ...]:
    """The complete checkpoints that a trial would go on from if one is damaged, the newest first,
    at most FALLBACKS_MAX.
    """
    others = (one for one in completed_checkpoints(table, trial_id) if one.uuid != damaged_uuid)
    newest = nlargest(FALLBACKS_MAX, others, key=_order_of_use)
    return tuple(one.uuid for one in newest)


def checkpoint_records(table: StateTable, trial_id: int) -> Iterator[CheckpointRecord]:
    """The records of all checkpoints of the trial, in any state."""
    address = addresses.trial(trial_id)
    kind, first = actor_type_at(address), PARTS + CHECKPOINT_PARTS
    for row in read_rows(table, address, first, f"{first}~"):
        record = kind.decode_part(row.key.sort.removeprefix(PARTS), row.body)
        assert isinstance(record, CheckpointRecord)
        yield record


def read_rows(table: StateTable, partition: str, first: str, last: str) -> Iterator[Row]:
    """Yield the rows of a range, a page at a time."""
    start: str | None = first
    while start is not None:
        page = table.query(partition, start, last)
        yield from page.rows
        start = page.next_sort


def _order_of_use(one: CheckpointCandidate) -> tuple[int, tuple[int, int, int, str]]:
    """The order in which a trial prefers its checkpoints to go on from, the best one last."""
    return one.steps, one.age


def _newest_uuids(engine: Engine, experiment: ExperimentState, trial_id: int) -> Iterator[str]:
    if experiment.status.is_final:
        return
    state = engine.read_state(addresses.trial(trial_id))
    if isinstance(state, TrialState) and not state.status.is_final and state.checkpoint is not None:
        yield state.checkpoint.uuid
