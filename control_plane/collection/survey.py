"""What checkpoints an experiment has, read trial by trial so that the reader may rest meanwhile."""

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field

from control_plane.actors import addresses
from control_plane.actors.experiment_state import ExperimentState
from control_plane.actors.experiment_summaries import SUMMARIES_PER_PART, Summaries
from control_plane.actors.trial_checkpoints import (
    CHECKPOINT_PARTS,
    CheckpointRecord,
    CheckpointState,
)
from control_plane.actors.trial_state import TrialState
from control_plane.collection.ranking import Candidate
from control_plane.dispatch.engine import Engine
from control_plane.dispatch.head import PARTS
from control_plane.dispatch.kinds import kind_at
from control_plane.state.table import Row, StateTable


@dataclass
class Survey:
    """The complete checkpoints by trial; `newest`: those that trials which go on would start from.

    It is of no one moment: what is decided upon it is looked at again before it is done.
    """

    by_trial: dict[int, tuple[Candidate, ...]] = field(default_factory=dict)
    newest: set[str] = field(default_factory=set)

    def candidates(self) -> Iterator[Candidate]:
        """All of them."""
        for found in self.by_trial.values():
            yield from found


def survey(engine: Engine, experiment: ExperimentState) -> Generator[None, None, Survey]:
    """Reads everything, resting after each trial, and returns what it found."""
    found = Survey()
    for trial_id in trial_ids(engine, experiment):
        candidates = candidates_of(engine.table, trial_id)
        if candidates:
            found.by_trial[trial_id] = candidates
            found.newest.update(_newest(engine, experiment, trial_id))
        yield
    return found


def trial_ids(engine: Engine, experiment: ExperimentState) -> Iterator[int]:
    """Ids of all its trials, by number; they are read as the iteration reaches them."""
    address = addresses.experiment(experiment.experiment_id)
    for index in range(-(-experiment.trials // SUMMARIES_PER_PART)):
        part = engine.part(address, f"trials/{index}")
        for summary in part.trials if isinstance(part, Summaries) else ():
            yield summary.trial_id


def candidates_of(table: StateTable, trial_id: int) -> tuple[Candidate, ...]:
    """The trial's complete checkpoints."""
    return tuple(
        Candidate(
            uuid=record.checkpoint.uuid,
            trial_id=trial_id,
            steps=record.checkpoint.steps_completed,
            metric=record.metric,
            created_ms=record.created_ms,
            size_bytes=record.size_bytes,
        )
        for record in records_of(table, trial_id)
        if record.state is CheckpointState.COMPLETED
    )


def newest_of(candidates: Iterable[Candidate]) -> Candidate | None:
    """The one that its trial would go on from."""
    return max(candidates, key=lambda one: (one.steps, one.age), default=None)


def records_of(table: StateTable, trial_id: int) -> Iterator[CheckpointRecord]:
    """What is recorded of the trial's checkpoints, whatever became of them."""
    address = addresses.trial(trial_id)
    kind, first = kind_at(address), PARTS + CHECKPOINT_PARTS
    for row in rows_of(table, address, first, f"{first}~"):
        record = kind.decode_part(row.key.sort.removeprefix(PARTS), row.body)
        assert isinstance(record, CheckpointRecord)
        yield record


def rows_of(table: StateTable, partition: str, first: str, last: str) -> Iterator[Row]:
    """The rows of a range, a page at a time."""
    start: str | None = first
    while start is not None:
        page = table.query(partition, start, last)
        yield from page.rows
        start = page.next_sort


def _newest(engine: Engine, experiment: ExperimentState, trial_id: int) -> Iterator[str]:
    if experiment.status.final:
        return
    state = engine.state(addresses.trial(trial_id))
    if isinstance(state, TrialState) and not state.status.final and state.checkpoint is not None:
        yield state.checkpoint.uuid
