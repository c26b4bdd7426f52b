"""Queries of checkpoints: by a prefix of the UUID, by trial and by experiment."""

import re
from collections.abc import Sequence
from typing import Any

from control_plane.access.ownership import Action, OwnedObject, check_may_change
from control_plane.access.principals import Principal
from control_plane.actors import addresses
from control_plane.actors.content_revision import content_revision
from control_plane.actors.metadata_edits import METADATA_EDITS, MetadataEdit, decode_edit
from control_plane.actors.pins import Pin
from control_plane.actors.trial.checkpoints import (
    CHECKPOINT_PARTS,
    CHECKPOINTS,
    CheckpointRecord,
    CheckpointState,
)
from control_plane.checkpoint_gc.checkpoint_inventory import checkpoint_records
from control_plane.checkpoint_gc.pins import read_pins
from control_plane.errors import Code, RequestError, invalid
from control_plane.json_gate import readable
from control_plane.queries import experiment as experiments
from control_plane.queries import trial as trials
from control_plane.queries.answer import Answer
from control_plane.queries.experiment_owners import find_owned_experiment
from control_plane.queries.pages import Page, PageRequest, encode_cursor
from control_plane.services import Services
from control_plane.state.table import GET_MAX, Key

# The most trials that a request reads. Most trials have too few checkpoints to fill a page.
_TRIALS_READ_MAX = 200
_PREFIX = re.compile(r"[0-9a-f-]{1,36}")


class CheckpointHolders(Answer):
    """The reasons for a pin on a checkpoint.

    `users` pinned the checkpoint. `versions` are the model versions of the checkpoint.
    `experiments` started from the checkpoint.
    """

    users: list[str]
    versions: list[str]
    experiments: list[int]


class Checkpoint(Answer):
    """A checkpoint without the list of files; docs/api.md describes the fields.

    A `pinned` checkpoint is neither collected nor deleted.
    """

    uuid: str
    trial_id: int
    experiment_id: int
    steps_completed: int
    state: CheckpointState
    size_bytes: int
    files: int
    metadata: dict[str, Any]
    metadata_revision: str
    metadata_damage: str
    metric: float | None
    created_ms: int
    uploaded_by: str | None
    pinned: bool
    pinned_by: CheckpointHolders
    damage: str
    deleted_patterns: list[str]


def describe_checkpoint(services: Services, prefix: str) -> Checkpoint:
    """Return the checkpoint with a UUID that starts with `prefix`. Upper case is accepted.

    Raises:
        RequestError: not_found, if no checkpoint matches or its trial was deleted; invalid, if
            several match or `prefix` is not the start of a UUID.
    """
    record, experiment_id = get_checkpoint(services, prefix)
    return checkpoint_answers(services, [record], experiment_id)[0]


def get_checkpoint(services: Services, prefix: str) -> tuple[CheckpointRecord, int]:
    """Load a checkpoint by a prefix of the UUID; return the record and the experiment id.

    A checkpoint whose files were deleted is returned too.

    Raises:
        RequestError: not_found, if no checkpoint matches or its trial was deleted; invalid, if
            several checkpoints match or `prefix` is not the start of a UUID.
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


def find_owned_checkpoint(services: Services, prefix: str) -> tuple[OwnedObject, ...]:
    """Return the ownership of a checkpoint as a tuple of one object, with the owner of the
    experiment.

    Raises:
        RequestError: not_found, if no checkpoint matches or its trial was deleted; invalid, if
            several checkpoints match or `prefix` is not the start of a UUID.
    """
    record, experiment_id = get_checkpoint(services, prefix)
    name = f"checkpoint {record.checkpoint.uuid} of experiment {experiment_id}"
    return find_owned_experiment(services, experiment_id, name)


def check_may_read(services: Services, prefix: str, caller: Principal) -> None:
    """Check that the caller may read the files of the checkpoint with this prefix of the UUID.

    All users may read the checkpoints of experiments. Only the owner and admins may read snapshots
    of the folder of a notebook or shell.

    Raises:
        RequestError: forbidden, for another user. not_found, if no checkpoint matches or its trial
            was deleted; invalid, if several match or `prefix` is not the start of a UUID.
    """
    record, experiment_id = get_checkpoint(services, prefix)
    if record.is_snapshot:
        state, _ = experiments.get_experiment(services, experiment_id)
        name = f"the folder of {state.title}"
        check_may_change(caller, OwnedObject(name, (state.owner,)), Action.READ)


def list_trial_checkpoints(
    services: Services, trial_id: int, page: PageRequest
) -> Page[Checkpoint]:
    """Return a page of the trial's checkpoints in any state, oldest first.

    All records of the trial are read for each page.

    Raises:
        RequestError: not_found, if the trial does not exist; invalid, for a cursor of another list.
    """
    experiment_id = trials.get_trial(services, trial_id).experiment_id
    after = page.start_after("checkpoints", (int,))
    first = 0 if after is None else int(after[0]) + 1
    records = _trial_records(services, trial_id)
    end = first + page.limit
    cursor = encode_cursor("checkpoints", (end - 1,)) if end < len(records) else None
    items = checkpoint_answers(services, records[first:end], experiment_id)
    return Page(items=items, next_cursor=cursor)


def list_experiment_checkpoints(
    services: Services, experiment_id: int, page: PageRequest
) -> Page[Checkpoint]:
    """Return a page of the experiment's checkpoints in any state, sorted by trial, oldest first.

    A request reads at most 200 trials, so that a page with a cursor may be short or empty.

    Raises:
        RequestError: not_found, if the experiment does not exist; invalid, for a cursor of another
            list.
    """
    state, _ = experiments.get_experiment(services, experiment_id)
    after = page.start_after("experiment-checkpoints", (int, int))
    number, skipped = (0, 0) if after is None else (int(after[0]), int(after[1]))
    end = min(state.trials, number + _TRIALS_READ_MAX)
    records: list[CheckpointRecord] = []
    cursor = _cursor(end, 0) if end < state.trials else None
    for trial_id in experiments.trial_ids(services, state, number, end):
        of_trial = _trial_records(services, trial_id)
        room = page.limit - len(records)
        records += of_trial[skipped : skipped + room]
        if len(of_trial) > skipped + room:
            cursor = _cursor(number, skipped + room)
            break
        number, skipped = number + 1, 0
    return Page(items=checkpoint_answers(services, records, experiment_id), next_cursor=cursor)


def _cursor(number: int, skipped: int) -> str:
    """Encode a cursor that continues behind `skipped` checkpoints of trial `number`."""
    return encode_cursor("experiment-checkpoints", (number, skipped))


def _trial_records(services: Services, trial_id: int) -> list[CheckpointRecord]:
    """Read the records of a trial's checkpoints in any state, oldest first."""
    return sorted(
        checkpoint_records(services.table, trial_id),
        key=lambda record: (
            record.created_ms,
            record.checkpoint.steps_completed,
            record.checkpoint.uuid,
        ),
    )


def checkpoint_answers(
    services: Services, records: Sequence[CheckpointRecord], experiment_id: int
) -> list[Checkpoint]:
    """Build the answers for checkpoints of an experiment, in the order of `records`.

    Reads the pins and the edits of metadata of all checkpoints together.
    """
    pins = read_pins(services.table, [record.checkpoint.uuid for record in records])
    edits = _read_edits(services, records)
    return [
        _checkpoint_answer(record, experiment_id, pin, edit.merge_edit(record.metadata))
        for record, pin, edit in zip(records, pins, edits, strict=True)
    ]


def _read_edits(services: Services, records: Sequence[CheckpointRecord]) -> list[MetadataEdit]:
    """Read users' edits of the checkpoints' metadata, in the order of `records`."""
    keys = [
        Key(
            addresses.trial(record.checkpoint.trial_id),
            f"{METADATA_EDITS}{record.checkpoint.uuid}",
        )
        for record in records
    ]
    return [
        decode_edit(row.body if row else None)
        for start in range(0, len(keys), GET_MAX)
        for row in services.table.get_many(keys[start : start + GET_MAX])
    ]


def _checkpoint_answer(
    record: CheckpointRecord, experiment_id: int, pin: Pin, metadata: dict[str, Any]
) -> Checkpoint:
    """Return the answer for a checkpoint. Values of `metadata` that are not valid JSON are
    replaced.
    """
    reference = record.checkpoint
    shown, damage = readable(metadata)
    return Checkpoint(
        uuid=reference.uuid,
        trial_id=reference.trial_id,
        experiment_id=experiment_id,
        steps_completed=reference.steps_completed,
        state=record.state,
        size_bytes=record.size_bytes,
        files=record.files,
        metadata=shown,
        metadata_revision=content_revision(metadata),
        metadata_damage=damage,
        metric=record.metric,
        created_ms=record.created_ms,
        uploaded_by=record.uploaded_by or None,
        damage=record.damage,
        deleted_patterns=list(record.deleted_patterns),
        pinned=pin.is_held(),
        pinned_by=pin_holders(pin),
    )


def pin_holders(pin: Pin) -> CheckpointHolders:
    """Return the users, model versions and experiments that a pin names."""
    return CheckpointHolders(
        users=list(pin.users), versions=list(pin.versions), experiments=list(pin.experiments)
    )
