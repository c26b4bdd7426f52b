"""Changes of registered models: create, update and delete."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from control_plane.access.ownership import Action, check_may_change
from control_plane.access.principals import Principal
from control_plane.actors.pins import PINS, decode_pin
from control_plane.errors import Code, RequestError
from control_plane.queries.model_records import (
    ModelRecord,
    VersionRecord,
    decode_model,
    decode_version,
    encode_record,
    model_key,
    owned_model,
    require_model,
    version_partition,
)
from control_plane.state.table import Delete, Key, Put, Row, StateTable, Write
from control_plane.usecases.checkpoint_pins import pin_write
from control_plane.usecases.row_changes import change_row, replacing_put

METADATA_BYTES_MAX = 64 * 1024
# The row of an idempotency key holds the record twice, the second time as a JSON text in JSON,
# where a quotation mark takes four bytes. 3 x 96 KiB stay below a row's limit of 400 KiB.
ROW_BYTES_MAX = 96 * 1024
# The most versions that a commit deletes. Each version takes two operations, for the row and the
# checkpoint's pin: 61 operations with the model's row.
_REMOVED_AT_ONCE = 30
_FIRST, _LAST = " ", "\x7f"


@dataclass(frozen=True)
class Changer:
    """The caller who changes the registry, and the time of the change."""

    caller: Principal
    now_ms: int
    """The current time in epoch ms."""


ModelExtraWrites = Callable[[ModelRecord, int], tuple[Write, ...]]
"""Returns further writes for the commit of a change, given the model and its revision."""


def create_model(
    table: StateTable, model: ModelRecord, extra_writes: ModelExtraWrites
) -> tuple[ModelRecord, int]:
    """Store a new model in a commit with the extra writes; return the model and the revision.

    Raises:
        RequestError: conflict, if a model with this name exists; too_large, if the record exceeds
            ROW_BYTES_MAX; unavailable, if other requests keep changing the model.
        Conflict: the condition of an extra write does not hold; nothing was written.
    """

    def change(row: Row | None) -> tuple[tuple[ModelRecord, int], tuple[Write, ...]]:
        if row is not None:
            owner = decode_model(row.body).user
            raise RequestError(Code.CONFLICT, f"model {model.name} already exists (owner {owner})")
        put = put_record(model_key(model.name), model, None, model.created_ms)
        return (model, put.revision), (put, *extra_writes(model, put.revision))

    return change_row(table, model_key(model.name), change, f"model {model.name}")


def update_model(
    table: StateTable,
    name: str,
    changes: dict[str, Any],
    changer: Changer,
    extra_writes: ModelExtraWrites,
    *,
    expected_revision: int | None = None,
) -> tuple[ModelRecord, int]:
    """Set fields of a model; return the model and the revision.

    If all fields already have the new values, only the extra writes are committed. An archived
    model can only be changed by a change that also unarchives it.

    Args:
        table: the state table.
        name: the name of the model.
        changes: the new values by the fields of `ModelRecord`.
        changer: the caller and the time.
        extra_writes: returns further writes of the commit.
        expected_revision: the revision that the caller read; None skips the check.

    Raises:
        RequestError: not_found, if the model does not exist. forbidden, if the caller is neither
            the model's owner nor an admin. conflict, if the model has another revision, or is
            archived and stays archived. too_large, if the record exceeds ROW_BYTES_MAX.
            unavailable, if other requests keep changing the model.
        Conflict: the condition of an extra write does not hold; nothing was written.
    """

    def change(row: Row | None) -> tuple[tuple[ModelRecord, int], tuple[Write, ...]]:
        model, row = require_model(name, row)
        check_may_change(changer.caller, owned_model(model))
        check_revision(f"model {name}", row, expected_revision)
        new = replace(model, **changes)
        if new == model:
            return (model, row.revision), extra_writes(model, row.revision)
        if model.archived and new.archived:
            raise archived_error(name)
        new = replace(new, updated_ms=changer.now_ms)
        put = put_record(row.key, new, row, changer.now_ms)
        return (new, put.revision), (put, *extra_writes(new, put.revision))

    return change_row(table, model_key(name), change, f"model {name}")


def delete_model(
    table: StateTable, name: str, changer: Changer, extra_writes: ModelExtraWrites
) -> tuple[ModelRecord, int]:
    """Delete a model and all versions; return the deleted model and the last revision.

    The versions' pins are removed, so that the checkpoints can be deleted. Versions are deleted in
    commits before the model's: an interrupted deletion leaves a model with fewer versions.

    Args:
        table: the state table.
        name: the name of the model.
        changer: the caller and the time.
        extra_writes: returns further writes of the last commit.

    Raises:
        RequestError: not_found, if the model does not exist; forbidden, if the caller is neither
            the model's owner nor an admin; unavailable, if other requests keep changing the model.
        Conflict: the condition of an extra write does not hold; the model stays without its
            versions.
    """

    def change(row: Row | None) -> tuple[tuple[ModelRecord, int] | None, tuple[Write, ...]]:
        model, row = require_model(name, row)
        check_may_change(changer.caller, owned_model(model), Action.DELETE)
        page = table.query(version_partition(name), _FIRST, _LAST, limit=_REMOVED_AT_ONCE)
        if page.rows:
            return None, version_removals(table, model, row, page.rows, changer.now_ms)
        deleted = (model, row.revision)
        return deleted, (Delete(row.key, row.revision), *extra_writes(*deleted))

    also = (PINS, version_partition(name))
    deleted = None
    while deleted is None:
        deleted = change_row(table, model_key(name), change, f"model {name}", also=also)
    return deleted


def version_removals(
    table: StateTable, model: ModelRecord, row: Row, version_rows: Iterable[Row], now_ms: int
) -> tuple[Write, ...]:
    """Return the writes that delete versions of a model; commit nothing.

    The writes delete the versions' rows, remove the versions from the checkpoints' pins, and reduce
    the count in the model's row.

    Args:
        table: the state table, from which the pins are read.
        model: the model.
        row: the model's row.
        version_rows: the rows of the versions.
        now_ms: the current time.

    Raises:
        RequestError: too_large, if the model's record exceeds ROW_BYTES_MAX.
    """
    deletes = [Delete(version_row.key, version_row.revision) for version_row in version_rows]
    names: dict[str, set[str]] = {}
    for version in (decode_version(version_row.body) for version_row in version_rows):
        names.setdefault(version.checkpoint_uuid, set()).add(version.pin_name)
    pins = [_unpin(table, uuid, pin_names, now_ms) for uuid, pin_names in names.items()]
    new = replace(model, versions=model.versions - len(deletes), updated_ms=now_ms)
    counted = put_record(row.key, new, row, now_ms)
    return (counted, *deletes, *(pin for pin in pins if pin is not None))


def put_record(
    key: Key, record: ModelRecord | VersionRecord, former: Row | None, now_ms: int
) -> Put:
    """Return the write that stores a model or version in place of the row `former`; commit nothing.

    The write expects the revision of `former`, or no row if `former` is None. The first revision of
    a row is `now_ms`.

    Raises:
        RequestError: too_large, if the record exceeds ROW_BYTES_MAX.
    """
    body = encode_record(record, former.body if former else None)
    if len(body) > ROW_BYTES_MAX:
        text = (
            f"its description, notes and metadata have {len(body)} bytes; the limit is "
            f"{ROW_BYTES_MAX}"
        )
        raise RequestError(Code.TOO_LARGE, f"{text}: shorten the notes or the metadata")
    return replacing_put(key, former, body, now_ms)


def check_revision(name: str, row: Row, expected: int | None) -> None:
    """Check that a row still has the revision that the caller read.

    None as `expected` skips the check.

    `name` is the name of the object in the error.

    Raises:
        RequestError: conflict, if the row has another revision.
    """
    if expected is not None and row.revision != expected:
        text = f"{name} was changed in the meantime: it has revision {row.revision}, not {expected}"
        raise RequestError(Code.CONFLICT, f"{text}; read it again and retry")


def archived_error(name: str) -> RequestError:
    """Return RequestError conflict for a change of an archived model; raise nothing."""
    text = f"model {name} is archived; unarchive it with `detcloud model unarchive` first"
    return RequestError(Code.CONFLICT, text)


def _unpin(table: StateTable, uuid: str, names: set[str], now_ms: int) -> Write | None:
    """Return the write that removes versions from a checkpoint's pin. Return None without a row.

    The write deletes the row if nothing else holds the checkpoint. `names` are the versions, each
    as `MODEL/NUMBER`.
    """
    row = table.get(Key(PINS, uuid))
    if row is None:
        return None
    pin = decode_pin(row.body)
    kept = replace(pin, versions=tuple(name for name in pin.versions if name not in names))
    return pin_write(uuid, row, kept, now_ms)
