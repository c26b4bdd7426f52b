"""The models of the registry in the state table, one row each, by name."""

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from control_plane.actors.pins import PINS, decode_pin
from control_plane.errors import Code, RequestError
from control_plane.queries.model_records import (
    ModelRecord,
    VersionRecord,
    decode_model,
    decode_version,
    model_key,
    require_model,
    version_partition,
)
from control_plane.state.table import Delete, Expect, Key, Put, Row, StateTable, Write
from control_plane.usecases.checkpoint_pins import pin_write
from control_plane.usecases.row_changes import change_row

METADATA_BYTES_MAX = 64 * 1024
# The row of an idempotency key holds what a row holds twice, the second time as a JSON text in
# JSON, where a quotation mark of a text is four bytes: 3 x 96 KiB stay below a row's 400 KiB.
ROW_BYTES_MAX = 96 * 1024
# Versions that go in one commit, each with its row and its checkpoint's pin: 61 operations.
_REMOVED_AT_ONCE = 30
_FIRST, _LAST = " ", "\x7f"


@dataclass(frozen=True)
class Changer:
    """The user who changes the registry, and the time."""

    user: str
    is_admin: bool
    now_ms: int


ModelExtraWrites = Callable[[ModelRecord, int], tuple[Write, ...]]
"""Makes the writes that a change has to commit with its own, given the model and its revision."""


def create_model(
    table: StateTable, model: ModelRecord, extra_writes: ModelExtraWrites
) -> tuple[ModelRecord, int]:
    """Store a new model, and return it with its revision.

    Raises:
        RequestError: conflict, if there is one of that name; too_large.
    """

    def change(row: Row | None) -> tuple[tuple[ModelRecord, int], tuple[Write, ...]]:
        if row is not None:
            owner = decode_model(row.body).user
            raise RequestError(Code.CONFLICT, f"there is a model {model.name}, {owner}'s")
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
    """Set fields of a model, and return it with its revision. What it says already changes nothing.

    Raises:
        RequestError: not_found; forbidden, for another's; conflict, if it is archived and stays so,
            or is of another revision than expected; too_large.
    """

    def change(row: Row | None) -> tuple[tuple[ModelRecord, int], tuple[Write, ...]]:
        model, row = require_model(name, row)
        _check_owner(model, changer)
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
    """Delete a model with its versions, whose checkpoints they hold no longer, and return it as it
    was in the end. What a failure interrupts is a model of fewer versions.

    Raises:
        RequestError: not_found; forbidden, for another's.
    """

    def change(row: Row | None) -> tuple[tuple[ModelRecord, int] | None, tuple[Write, ...]]:
        model, row = require_model(name, row)
        _check_owner(model, changer)
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
    """Make the writes that remove versions: their rows, the pins that they hold, and the model's
    `row`, which counts them.
    """
    deletes = [Delete(one.key, one.revision) for one in version_rows]
    names: dict[str, set[str]] = {}
    for version in (decode_version(one.body) for one in version_rows):
        names.setdefault(version.checkpoint_uuid, set()).add(version.pin_name)
    pins = [_release(table, uuid, gone, now_ms) for uuid, gone in names.items()]
    new = replace(model, versions=model.versions - len(deletes), updated_ms=now_ms)
    counted = put_record(row.key, new, row, now_ms)
    return (counted, *deletes, *(pin for pin in pins if pin is not None))


def put_record(
    key: Key, record: ModelRecord | VersionRecord, former: Row | None, now_ms: int
) -> Put:
    """Make the write that stores a record in place of `former`. A first revision is the time, so
    that no two rows of one name have the same.

    Raises:
        RequestError: too_large.
    """
    body = json.dumps(asdict(record), ensure_ascii=False).encode()
    if len(body) > ROW_BYTES_MAX:
        text = (
            f"its description, notes and metadata have {len(body)} bytes; the limit is "
            f"{ROW_BYTES_MAX}"
        )
        raise RequestError(Code.TOO_LARGE, f"{text}: shorten the notes or the metadata")
    if former is None:
        return Put(key, now_ms, body, Expect.ABSENT)
    return Put(key, former.revision + 1, body, former.revision)


def check_revision(what: str, row: Row, expected: int | None) -> None:
    """Raise RequestError conflict if the row is of another revision than its changer saw."""
    if expected is not None and row.revision != expected:
        text = f"{what} was changed in the meantime: it has revision {row.revision}, not {expected}"
        raise RequestError(Code.CONFLICT, f"{text}; read it again and retry")


def archived_error(name: str) -> RequestError:
    """The error for a change of an archived model."""
    text = f"model {name} is archived; unarchive it with `detcloud model unarchive` first"
    return RequestError(Code.CONFLICT, text)


def _release(table: StateTable, uuid: str, names: set[str], now_ms: int) -> Write | None:
    row = table.get(Key(PINS, uuid))
    if row is None:
        return None
    pin = decode_pin(row.body)
    kept = replace(pin, versions=tuple(name for name in pin.versions if name not in names))
    return pin_write(uuid, row, kept, now_ms)


def _check_owner(model: ModelRecord, changer: Changer) -> None:
    if changer.user != model.user and not changer.is_admin:
        text = f"model {model.name} is {model.user}'s: only they or an admin can change it"
        raise RequestError(Code.FORBIDDEN, text)
