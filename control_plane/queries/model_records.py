"""Rows of registered models and model versions in the state table."""

from dataclasses import dataclass, field
from typing import Any

from control_plane.access.ownership import OwnedObject
from control_plane.errors import Code, RequestError
from control_plane.rows import user_rows
from control_plane.rows.json_codec import JsonCodec
from control_plane.state.table import Key, Row, StateTable

MODELS = user_rows.MODEL.partition
DEFAULT_WORKSPACE = "Uncategorized"


@dataclass(frozen=True)
class ModelRecord:
    """The stored row of a registered model."""

    name: str
    user: str
    """The user who created the model and owns it."""
    created_ms: int
    updated_ms: int
    workspace: str = DEFAULT_WORKSPACE
    description: str = ""
    notes: str = ""
    labels: tuple[str, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)
    archived: bool = False
    versions: int = 0
    """The number of versions that exist now."""
    versions_made: int = 0
    """The number of versions ever registered, deleted versions included."""


@dataclass(frozen=True)
class VersionRecord:
    """The stored row of a model version."""

    model: str
    """The name of the registered model."""
    number: int
    """The version number, counted from 1 within the model."""
    checkpoint_uuid: str
    trial_id: int
    experiment_id: int
    steps_completed: int
    """The batches that the trial had trained when it saved the checkpoint."""
    user: str
    """The user who registered the version."""
    created_ms: int
    updated_ms: int
    name: str = ""
    comment: str = ""
    notes: str = ""
    labels: tuple[str, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def pin_name(self) -> str:
        """The name of this version in the checkpoint's pin, for example `digits/3`."""
        return f"{self.model}/{self.number}"


_MODEL = JsonCodec(user_rows.MODEL, ModelRecord, {"labels": tuple}, ensure_ascii=False)
_VERSION = JsonCodec(user_rows.MODEL_VERSION, VersionRecord, {"labels": tuple}, ensure_ascii=False)


def model_key(name: str) -> Key:
    """Return the key of a registered model's row."""
    return Key(MODELS, name)


def version_partition(model: str) -> str:
    """Return the partition that holds the version rows of a model."""
    return user_rows.MODEL_VERSION.partition_of(model)


def version_key(model: str, number: int) -> Key:
    """Return the key of a model version's row."""
    return Key(version_partition(model), f"{number:09d}")


def decode_model(body: bytes) -> ModelRecord:
    """Decode the body of a model's row. Fields of newer releases are ignored.

    Raises ValueError for an invalid body.
    """
    return _MODEL.decode(body)


def decode_version(body: bytes) -> VersionRecord:
    """Decode the body of a model version's row. Fields of newer releases are ignored.

    Raises ValueError for an invalid body.
    """
    return _VERSION.decode(body)


def encode_record(record: ModelRecord | VersionRecord, before: bytes | None) -> bytes:
    """Encode a model or a version as the body of a row.

    Args:
        record: the model or the version.
        before: the body of the row that is replaced, with fields of newer versions to keep. None
            for a new row.
    """
    if isinstance(record, ModelRecord):
        return _MODEL.encode(record, before)
    return _VERSION.encode(record, before)


def owned_model(model: ModelRecord) -> OwnedObject:
    """Return the ownership of a model. The creator owns the model."""
    return OwnedObject(f"model {model.name}", (model.user,), "create a model of your own")


def owned_version(version: VersionRecord, model: ModelRecord) -> OwnedObject:
    """Return the ownership of a version.

    The user who registered the version and the model's owner own the version.
    """
    owners = tuple(dict.fromkeys((version.user, model.user)))
    return OwnedObject(f"version {version.pin_name}", owners)


def find_owned_model(table: StateTable, name: str) -> tuple[OwnedObject, ...]:
    """Return the ownership of a model in a tuple. Return () if the model does not exist. Reads one
    row.
    """
    row = table.get(model_key(name))
    return () if row is None else (owned_model(decode_model(row.body)),)


def find_owned_version(table: StateTable, model: str, number: int) -> tuple[OwnedObject, ...]:
    """Return the ownership of a version in a tuple; see `owned_version`.

    Return () if the version or the model does not exist.
    """
    row, model_row = table.get(version_key(model, number)), table.get(model_key(model))
    if row is None or model_row is None:
        return ()
    return (owned_version(decode_version(row.body), decode_model(model_row.body)),)


def load_model(table: StateTable, name: str) -> tuple[ModelRecord, Row]:
    """Load a model; return the decoded record and the row.

    Raises:
        RequestError: not_found, if the model does not exist.
    """
    return require_model(name, table.get(model_key(name)))


def load_version(table: StateTable, model: str, number: int) -> tuple[VersionRecord, Row]:
    """Load a model version; return the decoded record and the row.

    Raises:
        RequestError: not_found, if the version does not exist.
    """
    return require_version(model, number, table.get(version_key(model, number)))


def require_model(name: str, row: Row | None) -> tuple[ModelRecord, Row]:
    """Decode a model's row; return the record and the row.

    Raises:
        RequestError: not_found, if `row` is None.
    """
    if row is None:
        raise RequestError(Code.NOT_FOUND, f"there is no model {name}")
    return decode_model(row.body), row


def require_version(model: str, number: int, row: Row | None) -> tuple[VersionRecord, Row]:
    """Decode a version's row; return the record and the row.

    Raises:
        RequestError: not_found, if `row` is None.
    """
    if row is None:
        raise RequestError(Code.NOT_FOUND, f"there is no version {number} of a model {model}")
    return decode_version(row.body), row
