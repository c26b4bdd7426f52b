"""Versions of models, each of which pins a checkpoint against deletion."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from control_plane.actors.pins import PINS, Pin, decode_pin
from control_plane.actors.trial.checkpoints import CheckpointState
from control_plane.errors import Code, RequestError
from control_plane.queries.checkpoint import Checkpoint, describe_checkpoint
from control_plane.queries.model_records import (
    VersionRecord,
    load_model,
    load_version,
    model_key,
    require_version,
    version_key,
    version_partition,
)
from control_plane.services import Services
from control_plane.state.table import Key, Row, StateTable, Write
from control_plane.usecases.checkpoint_pins import pin_write
from control_plane.usecases.models import (
    Changer,
    archived_error,
    check_revision,
    put_record,
    version_removals,
)
from control_plane.usecases.row_changes import change_row

# A pin names each of them, and is read whole.
VERSIONS_OF_CHECKPOINT_MAX = 100

VersionExtraWrites = Callable[[VersionRecord, int], tuple[Write, ...]]
"""Makes the writes that a change has to commit with its own, given the version and its revision."""


def register_version(
    services: Services,
    model_name: str,
    uuid: str,
    fields: dict[str, Any],
    changer: Changer,
    extra_writes: VersionExtraWrites,
) -> tuple[VersionRecord, int]:
    """Make the next version of a model, of the checkpoint whose UUID begins with `uuid`, which
    stays as long as the version does. Every user may add to a model.

    Raises:
        RequestError: not_found; conflict, if the model is archived, the checkpoint deleted or a
            version of too many; too_large.
    """
    table = services.table

    def change(_: Row | None) -> tuple[tuple[VersionRecord, int], tuple[Write, ...]]:
        model, row = load_model(table, model_name)
        if model.archived:
            raise archived_error(model_name)
        # The pin is read first: a checkpoint that is marked for deletion later changes it.
        full_uuid = describe_checkpoint(services, uuid).uuid
        pin_row = table.get(Key(PINS, full_uuid))
        checkpoint = describe_checkpoint(services, full_uuid)
        number = model.versions_made + 1
        version = _new_version(model_name, number, checkpoint, fields, changer)
        pin = _pin_with_version(version, checkpoint, pin_row, changer.now_ms)
        counted = replace(
            model, versions=model.versions + 1, versions_made=number, updated_ms=changer.now_ms
        )
        put = put_record(version_key(model_name, number), version, None, changer.now_ms)
        writes = (put_record(row.key, counted, row, changer.now_ms), put, pin)
        return (version, put.revision), (*writes, *extra_writes(version, put.revision))

    also = (PINS, version_partition(model_name))
    return change_row(table, model_key(model_name), change, f"model {model_name}", also=also)


def update_version(
    table: StateTable,
    model: str,
    number: int,
    changes: dict[str, Any],
    changer: Changer,
    extra_writes: VersionExtraWrites,
    *,
    expected_revision: int | None = None,
) -> tuple[VersionRecord, int]:
    """Set what is said of a version, and return it with its revision. What it says already changes
    nothing.

    Raises:
        RequestError: not_found; forbidden, unless it or the model is the changer's; conflict, if
            it is of another revision than expected, or the model archived; too_large.
    """

    def change(row: Row | None) -> tuple[tuple[VersionRecord, int], tuple[Write, ...]]:
        version, row = require_version(model, number, row)
        _check_owner(table, version, changer)
        check_revision(f"version {number} of model {model}", row, expected_revision)
        new = replace(version, **changes)
        if new == version:
            return (version, row.revision), extra_writes(version, row.revision)
        if load_model(table, model)[0].archived:
            raise archived_error(model)
        new = replace(new, updated_ms=changer.now_ms)
        put = put_record(row.key, new, row, changer.now_ms)
        return (new, put.revision), (put, *extra_writes(new, put.revision))

    return change_row(table, version_key(model, number), change, f"version {number} of {model}")


def delete_version(
    table: StateTable, model: str, number: int, changer: Changer, extra_writes: VersionExtraWrites
) -> tuple[VersionRecord, int]:
    """Delete a version and return it as it was. Its checkpoint is held no longer, unless another
    version or an experiment holds it; its number is given to no other.

    Raises:
        RequestError: not_found; forbidden, unless it or the model is the changer's.
    """

    def change(_: Row | None) -> tuple[tuple[VersionRecord, int], tuple[Write, ...]]:
        record, model_row = load_model(table, model)
        version, row = load_version(table, model, number)
        _check_owner(table, version, changer)
        writes = version_removals(table, record, model_row, (row,), changer.now_ms)
        return (version, row.revision), (*writes, *extra_writes(version, row.revision))

    also = (PINS, version_partition(model))
    return change_row(table, model_key(model), change, f"model {model}", also=also)


def _new_version(
    model: str, number: int, checkpoint: Checkpoint, fields: dict[str, Any], changer: Changer
) -> VersionRecord:
    return VersionRecord(
        model=model,
        number=number,
        checkpoint_uuid=checkpoint.uuid,
        trial_id=checkpoint.trial_id,
        experiment_id=checkpoint.experiment_id,
        steps_completed=checkpoint.steps_completed,
        user=changer.user,
        created_ms=changer.now_ms,
        updated_ms=changer.now_ms,
        **fields,
    )


def _pin_with_version(
    version: VersionRecord, checkpoint: Checkpoint, row: Row | None, now_ms: int
) -> Write:
    """Make the write that adds the version to its checkpoint's pin; RequestError conflict."""
    pin = Pin() if row is None else decode_pin(row.body)
    if checkpoint.state is CheckpointState.DAMAGED:
        text = f"checkpoint {checkpoint.uuid} is damaged, and cannot be a version"
        raise RequestError(Code.CONFLICT, f"{text}: {checkpoint.damage}")
    if pin.gone or checkpoint.state is not CheckpointState.COMPLETED:
        how = checkpoint.state.deletion_text
        text = f"checkpoint {checkpoint.uuid} was {how}, and cannot be a version"
        raise RequestError(Code.CONFLICT, text)
    if len(pin.versions) >= VERSIONS_OF_CHECKPOINT_MAX:
        text = f"checkpoint {checkpoint.uuid} is {VERSIONS_OF_CHECKPOINT_MAX} versions already"
        raise RequestError(Code.CONFLICT, f"{text}; delete one of them first")
    held = replace(pin, versions=(*pin.versions, version.pin_name))
    return pin_write(checkpoint.uuid, row, held, now_ms)


def _check_owner(table: StateTable, version: VersionRecord, changer: Changer) -> None:
    """Check that the version or its model is the changer's, or the changer an admin."""
    if changer.is_admin or changer.user == version.user:
        return
    owner = load_model(table, version.model)[0].user
    if changer.user != owner:
        whose = version.user if version.user == owner else f"{version.user}'s and {owner}"
        text = f"version {version.pin_name} is {whose}'s: only they or an admin can change it"
        raise RequestError(Code.FORBIDDEN, text)
