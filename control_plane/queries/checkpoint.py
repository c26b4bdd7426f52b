"""Checkpoints: found by a prefix of their UUID, listed by trial and by experiment."""

import re
from typing import Any

from control_plane.actors import addresses
from control_plane.actors.trial.checkpoints import (
    CHECKPOINT_PARTS,
    CHECKPOINTS,
    CheckpointRecord,
    CheckpointState,
)
from control_plane.collection.survey import checkpoint_records
from control_plane.errors import Code, RequestError, invalid
from control_plane.queries import experiment as experiments
from control_plane.queries import trial as trials
from control_plane.queries.answer import Answer
from control_plane.queries.pages import Page, PageRequest, encode_cursor
from control_plane.services import Services

# Trials that one request reads: most have too few checkpoints for a page of their own.
_TRIALS_READ_MAX = 200
_PREFIX = re.compile(r"[0-9a-f-]{1,36}")


class Checkpoint(Answer):
    """A checkpoint, described without its files; docs/api.md has the fields."""

    uuid: str
    trial_id: int
    experiment_id: int
    steps_completed: int
    state: CheckpointState
    size_bytes: int
    files: int
    metadata: dict[str, Any]
    metric: float | None
    created_ms: int
    damage: str


def describe_checkpoint(services: Services, prefix: str) -> Checkpoint:
    """Describe the one checkpoint whose UUID begins with `prefix`; RequestError not_found or
    invalid.
    """
    return checkpoint_answer(*get_checkpoint(services, prefix))


def get_checkpoint(services: Services, prefix: str) -> tuple[CheckpointRecord, int]:
    """Load a checkpoint's record and its experiment's id.

    Raises:
        RequestError: not_found; invalid, if several fit or it is no prefix of a UUID.
    """
    prefix = prefix.lower()
    if not _PREFIX.fullmatch(prefix):
        raise invalid("uuid", "must be a UUID or its beginning")
    rows = services.table.query(CHECKPOINTS, prefix, f"{prefix}~", limit=2).rows
    if len(rows) > 1:
        raise invalid("uuid", f"several checkpoints begin with {prefix}", "give more digits")
    if not rows:
        raise RequestError(Code.NOT_FOUND, f"there is no checkpoint {prefix}")
    trial_id = int(rows[0].body)
    record = services.engine.read_part(
        addresses.trial(trial_id), CHECKPOINT_PARTS + rows[0].key.sort
    )
    if not isinstance(record, CheckpointRecord):
        raise RequestError(Code.NOT_FOUND, f"there is no checkpoint {prefix}")
    return record, trials.get_trial(services, trial_id).experiment_id


def list_trial_checkpoints(
    services: Services, trial_id: int, page: PageRequest
) -> Page[Checkpoint]:
    """List the trial's checkpoints, oldest first; RequestError not_found."""
    experiment_id = trials.get_trial(services, trial_id).experiment_id
    after = page.start_after("checkpoints", (int,))
    first = 0 if after is None else int(after[0]) + 1
    checkpoints = _trial_checkpoints(services, trial_id, experiment_id)
    end = first + page.limit
    cursor = encode_cursor("checkpoints", (end - 1,)) if end < len(checkpoints) else None
    return Page(items=checkpoints[first:end], next_cursor=cursor)


def list_experiment_checkpoints(
    services: Services, experiment_id: int, page: PageRequest
) -> Page[Checkpoint]:
    """List the checkpoints of all its trials, by trial, oldest first; RequestError not_found."""
    state, _ = experiments.get_experiment(services, experiment_id)
    after = page.start_after("experiment-checkpoints", (int, int))
    number, skipped = (0, 0) if after is None else (int(after[0]), int(after[1]))
    end = min(state.trials, number + _TRIALS_READ_MAX)
    items: list[Checkpoint] = []
    for trial_id in experiments.trial_ids(services, state, number, end):
        checkpoints = _trial_checkpoints(services, trial_id, experiment_id)
        room = page.limit - len(items)
        items += checkpoints[skipped : skipped + room]
        if len(checkpoints) > skipped + room:
            return Page(items=items, next_cursor=_cursor(number, skipped + room))
        number, skipped = number + 1, 0
    return Page(items=items, next_cursor=_cursor(end, 0) if end < state.trials else None)


def _cursor(number: int, skipped: int) -> str:
    return encode_cursor("experiment-checkpoints", (number, skipped))


def _trial_checkpoints(services: Services, trial_id: int, experiment_id: int) -> list[Checkpoint]:
    records = checkpoint_records(services.table, trial_id)
    checkpoints = [checkpoint_answer(record, experiment_id) for record in records]
    return sorted(checkpoints, key=lambda one: (one.created_ms, one.steps_completed, one.uuid))


def checkpoint_answer(record: CheckpointRecord, experiment_id: int) -> Checkpoint:
    """The answer that describes a checkpoint's record."""
    reference = record.checkpoint
    return Checkpoint(
        uuid=reference.uuid,
        trial_id=reference.trial_id,
        experiment_id=experiment_id,
        steps_completed=reference.steps_completed,
        state=record.state,
        size_bytes=record.size_bytes,
        files=record.files,
        metadata=dict(record.metadata),
        metric=record.metric,
        created_ms=record.created_ms,
        damage=record.damage,
    )
