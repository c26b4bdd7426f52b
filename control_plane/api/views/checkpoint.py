"""Checkpoints as the API shows them."""

import re
from typing import Any

from control_plane.actors import addresses
from control_plane.actors.trial_checkpoints import (
    CHECKPOINT_PARTS,
    CHECKPOINTS,
    CheckpointRecord,
    CheckpointState,
)
from control_plane.api.bodies import Body
from control_plane.api.errors import ApiError, Code, invalid
from control_plane.api.pages import Page, PageAsked, write_cursor
from control_plane.api.services import Services
from control_plane.api.views import experiment as experiments
from control_plane.api.views import trial as trials
from control_plane.collection.survey import records_of

# Trials that one request looks at: most have no checkpoint worth a page of their own.
_TRIALS_READ_MAX = 200
_PREFIX = re.compile(r"[0-9a-f-]{1,36}")


class Checkpoint(Body):
    """See docs/api.md."""

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


def checkpoint(services: Services, prefix: str) -> Checkpoint:
    """The one checkpoint whose UUID begins with `prefix`; ApiError not_found or invalid."""
    return shown(*found(services, prefix))


def found(services: Services, prefix: str) -> tuple[CheckpointRecord, int]:
    """A checkpoint's record and its experiment's id.

    Raises:
        ApiError: not_found; invalid, if several fit or it is no beginning of a UUID.
    """
    prefix = prefix.lower()
    if not _PREFIX.fullmatch(prefix):
        raise invalid("uuid", "must be a UUID or its beginning")
    rows = services.table.query(CHECKPOINTS, prefix, f"{prefix}~", limit=2).rows
    if len(rows) > 1:
        raise invalid("uuid", f"several checkpoints begin with {prefix}", "give more digits")
    if not rows:
        raise ApiError(Code.NOT_FOUND, f"there is no checkpoint {prefix}")
    trial_id = int(rows[0].body)
    record = services.engine.part(addresses.trial(trial_id), CHECKPOINT_PARTS + rows[0].key.sort)
    if not isinstance(record, CheckpointRecord):
        raise ApiError(Code.NOT_FOUND, f"there is no checkpoint {prefix}")
    return record, trials.found(services, trial_id).experiment_id


def of_trial(services: Services, trial_id: int, asked: PageAsked) -> Page[Checkpoint]:
    """The trial's checkpoints, oldest first; ApiError not_found."""
    experiment_id = trials.found(services, trial_id).experiment_id
    after = asked.after("checkpoints", (int,))
    first = 0 if after is None else int(after[0]) + 1
    kept = _of(services, trial_id, experiment_id)
    end = first + asked.limit
    cursor = write_cursor("checkpoints", (end - 1,)) if end < len(kept) else None
    return Page(items=kept[first:end], next_cursor=cursor)


def of_experiment(services: Services, experiment_id: int, asked: PageAsked) -> Page[Checkpoint]:
    """Checkpoints of all its trials, by trial, each one's oldest first; ApiError not_found."""
    state, _ = experiments.found(services, experiment_id)
    after = asked.after("experiment-checkpoints", (int, int))
    number, skipped = (0, 0) if after is None else (int(after[0]), int(after[1]))
    end = min(state.trials, number + _TRIALS_READ_MAX)
    items: list[Checkpoint] = []
    for trial_id in experiments.trial_ids(services, state, number, end):
        kept = _of(services, trial_id, experiment_id)
        room = asked.limit - len(items)
        items += kept[skipped : skipped + room]
        if len(kept) > skipped + room:
            return Page(items=items, next_cursor=_cursor(number, skipped + room))
        number, skipped = number + 1, 0
    return Page(items=items, next_cursor=_cursor(end, 0) if end < state.trials else None)


def _cursor(number: int, skipped: int) -> str:
    return write_cursor("experiment-checkpoints", (number, skipped))


def _of(services: Services, trial_id: int, experiment_id: int) -> list[Checkpoint]:
    kept = [shown(record, experiment_id) for record in records_of(services.table, trial_id)]
    return sorted(kept, key=lambda one: (one.created_ms, one.steps_completed, one.uuid))


def shown(record: CheckpointRecord, experiment_id: int) -> Checkpoint:
    """The record as the API shows it."""
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
    )
