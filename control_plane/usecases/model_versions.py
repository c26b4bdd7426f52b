"""Changes of model versions. Each version pins its checkpoint, which prevents a deletion."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from control_plane.access.ownership import Action, check_may_change
from control_plane.actors.event_routes import EventScope, EventType
from control_plane.actors.events import Event
from control_plane.actors.pins import PINS, Pin, decode_pin
from control_plane.actors.trial.checkpoints import CheckpointState
from control_plane.errors import Code, RequestError
from control_plane.queries.checkpoint import Checkpoint, describe_checkpoint
from control_plane.queries.model_records import (
    VersionRecord,
    load_model,
    load_version,
    model_key,
    owned_model,
    owned_version,
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
from control_plane.webhooks.event_writes import event_writes

# The most versions of a checkpoint. A pin's row names every version.
VERSIONS_OF_CHECKPOINT_MAX = 100

VersionExtraWrites = Callable[[VersionRecord, int], tuple[Write, ...]]
"""Returns further writes for the commit of a change, given the version and its revision."""


def register_version(
    services: Services,
    model_name: str,
    uuid: str,
    fields: dict[str, Any],
    changer: Changer,
    extra_writes: VersionExtraWrites,
) -> tuple[VersionRecord, int]:
    """Register a checkpoint as the next version of a model; return the version and the revision.

    The commit also adds the version to the checkpoint's pin, and counts the version in the model's
    row. A pinned checkpoint is not deleted. Webhooks announce the version. The checkpoint may
    belong to any user's experiment.

    Args:
        services: the services with the state table.
        model_name: the name of the model.
        uuid: a prefix of the checkpoint's UUID.
        fields: the values of `name`, `comment`, `notes`, `labels` and `metadata`.
        changer: the caller and the time.
        extra_writes: returns further writes of the commit.

    Raises:
        RequestError: not_found, if the model or checkpoint does not exist. invalid, if `uuid` is no
            prefix of a single UUID. forbidden, if the caller is neither the model's owner nor an
            admin. conflict, if the model is archived, or the checkpoint is damaged, deleted, or has
            VERSIONS_OF_CHECKPOINT_MAX versions. too_large, if the record is too large. unavailable,
            if other requests keep changing the model.
        Conflict: the condition of an extra write does not hold; nothing was written.
    """
    table = services.table

    def change(_: Row | None) -> tuple[tuple[VersionRecord, int], tuple[Write, ...]]:
        model, row = load_model(table, model_name)
        check_may_change(changer.caller, owned_model(model), Action.REGISTER)
        if model.archived:
            raise archived_error(model_name)
        # Read the checkpoint again after the pin. Marking a checkpoint for deletion changes the
        # pin, so that the commit fails if this happens after the read.
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
        events = event_writes(table, _version_event(version), changer.now_ms)
        writes = (put_record(row.key, counted, row, changer.now_ms), put, pin, *events)
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
    """Set fields of a version; return the version and the revision.

    If all fields already have the new values, only the extra writes are committed, also for an
    archived model.

    Args:
        table: the state table.
        model: the name of the model.
        number: the number of the version.
        changes: the new values by the fields of `VersionRecord`.
        changer: the caller and the time.
        extra_writes: returns further writes of the commit.
        expected_revision: the revision that the caller read; None skips the check.

    Raises:
        RequestError: not_found, if the model or version does not exist. forbidden, if the caller
            owns neither the version nor the model and is no admin. conflict, if the version has
            another revision or the model is archived. too_large, if the record is too large.
            unavailable, if other requests keep changing the version.
        Conflict: the condition of an extra write does not hold; nothing was written.
    """

    def change(row: Row | None) -> tuple[tuple[VersionRecord, int], tuple[Write, ...]]:
        version, row = require_version(model, number, row)
        record, _ = load_model(table, model)
        check_may_change(changer.caller, owned_version(version, record))
        check_revision(f"version {number} of model {model}", row, expected_revision)
        new = replace(version, **changes)
        if new == version:
            return (version, row.revision), extra_writes(version, row.revision)
        if record.archived:
            raise archived_error(model)
        new = replace(new, updated_ms=changer.now_ms)
        put = put_record(row.key, new, row, changer.now_ms)
        return (new, put.revision), (put, *extra_writes(new, put.revision))

    return change_row(table, version_key(model, number), change, f"version {number} of {model}")


def delete_version(
    table: StateTable, model: str, number: int, changer: Changer, extra_writes: VersionExtraWrites
) -> tuple[VersionRecord, int]:
    """Delete a version and the pin; return the deleted version and the last revision.

    The commit also reduces the count in the model's row. The checkpoint can then be deleted, unless
    other pins protect it. The version's number is never used again. An archived model allows the
    deletion.

    Raises:
        RequestError: not_found, if the model or version does not exist; forbidden, if the caller
            owns neither the version nor the model and is no admin; unavailable, if other requests
            keep changing the model.
        Conflict: the condition of an extra write does not hold; nothing was written.
    """

    def change(_: Row | None) -> tuple[tuple[VersionRecord, int], tuple[Write, ...]]:
        record, model_row = load_model(table, model)
        version, row = load_version(table, model, number)
        check_may_change(changer.caller, owned_version(version, record), Action.DELETE)
        writes = version_removals(table, record, model_row, (row,), changer.now_ms)
        return (version, row.revision), (*writes, *extra_writes(version, row.revision))

    also = (PINS, version_partition(model))
    return change_row(table, model_key(model), change, f"model {model}", also=also)


def _new_version(
    model: str, number: int, checkpoint: Checkpoint, fields: dict[str, Any], changer: Changer
) -> VersionRecord:
    """Return the record of a version of `checkpoint`, created by the changer; store nothing."""
    return VersionRecord(
        model=model,
        number=number,
        checkpoint_uuid=checkpoint.uuid,
        trial_id=checkpoint.trial_id,
        experiment_id=checkpoint.experiment_id,
        steps_completed=checkpoint.steps_completed,
        user=changer.caller.user,
        created_ms=changer.now_ms,
        updated_ms=changer.now_ms,
        **fields,
    )


def _version_event(version: VersionRecord) -> Event:
    """Return the event of a new version. The versions of a model are announced in order."""
    data = {
        "model": version.model,
        "version": version.number,
        "name": version.name,
        "checkpoint_uuid": version.checkpoint_uuid,
        "trial_id": version.trial_id,
        "experiment_id": version.experiment_id,
        "user": version.user,
    }
    return Event(
        EventType.MODEL_VERSION,
        f"model#{version.model}",
        version.number,
        f"model {version.model} has version {version.number}",
        version.comment,
        data={"model_version": data},
        scope=EventScope(user=version.user),
    )


def _pin_with_version(
    version: VersionRecord, checkpoint: Checkpoint, row: Row | None, now_ms: int
) -> Write:
    """Return the write that adds a version to the checkpoint's pin; commit nothing.

    `row` is the pin's row, or None without a pin.

    Raises:
        RequestError: conflict, if the checkpoint is damaged, deleted also in part, or has
            VERSIONS_OF_CHECKPOINT_MAX versions.
    """
    pin = Pin() if row is None else decode_pin(row.body)
    if checkpoint.state is CheckpointState.DAMAGED:
        text = f"checkpoint {checkpoint.uuid} is damaged, and cannot be a version"
        raise RequestError(Code.CONFLICT, f"{text}: {checkpoint.damage}")
    if pin.is_deleted or checkpoint.state is not CheckpointState.COMPLETED:
        how = checkpoint.state.deletion_text
        text = f"checkpoint {checkpoint.uuid} was {how}, and cannot be a version"
        raise RequestError(Code.CONFLICT, text)
    if len(pin.versions) >= VERSIONS_OF_CHECKPOINT_MAX:
        text = f"checkpoint {checkpoint.uuid} is {VERSIONS_OF_CHECKPOINT_MAX} versions already"
        raise RequestError(Code.CONFLICT, f"{text}; delete one of them first")
    held = replace(pin, versions=(*pin.versions, version.pin_name))
    return pin_write(checkpoint.uuid, row, held, now_ms)
