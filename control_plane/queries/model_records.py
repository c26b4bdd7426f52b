"""The rows of models and of their versions in the state table."""

import json
from dataclasses import dataclass, field
from typing import Any

from control_plane.errors import Code, RequestError
from control_plane.state.table import Key, Row, StateTable

MODELS = "models"
DEFAULT_WORKSPACE = "Uncategorized"


@dataclass(frozen=True)
class ModelRecord:
    """A model as stored. `user` owns it; `versions` it has now, `versions_made` it ever had."""

    name: str
    user: str
    created_ms: int
    updated_ms: int
    workspace: str = DEFAULT_WORKSPACE
    description: str = ""
    notes: str = ""
    labels: tuple[str, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)
    archived: bool = False
    versions: int = 0
    versions_made: int = 0


@dataclass(frozen=True)
class VersionRecord:
    """A version of a model as stored: the checkpoint, whose it is, and what is said of it."""

    model: str
    number: int
    checkpoint_uuid: str
    trial_id: int
    experiment_id: int
    steps_completed: int
    user: str
    created_ms: int
    updated_ms: int
    name: str = ""
    comment: str = ""
    notes: str = ""
    labels: tuple[str, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def pin_name(self) -> str:
        """The name that the pin of its checkpoint has for it."""
        return f"{self.model}/{self.number}"


def model_key(name: str) -> Key:
    """The key of a model's row."""
    return Key(MODELS, name)


def version_partition(model: str) -> str:
    """The partition of the rows of a model's versions."""
    return f"model-versions#{model}"


def version_key(model: str, number: int) -> Key:
    """The key of a version's row."""
    return Key(version_partition(model), f"{number:09d}")


def decode_model(body: bytes) -> ModelRecord:
    """Decode the body of a model's row."""
    fields = json.loads(body)
    return ModelRecord(**{**fields, "labels": tuple(fields["labels"])})


def decode_version(body: bytes) -> VersionRecord:
    """Decode the body of a version's row."""
    fields = json.loads(body)
    return VersionRecord(**{**fields, "labels": tuple(fields["labels"])})


def load_model(table: StateTable, name: str) -> tuple[ModelRecord, Row]:
    """Load a model and its row.

    Raises:
        RequestError: not_found.
    """
    return require_model(name, table.get(model_key(name)))


def load_version(table: StateTable, model: str, number: int) -> tuple[VersionRecord, Row]:
    """Load a version and its row.

    Raises:
        RequestError: not_found.
    """
    return require_version(model, number, table.get(version_key(model, number)))


def require_model(name: str, row: Row | None) -> tuple[ModelRecord, Row]:
    """Decode a model's row. Raises RequestError not_found if there is none."""
    if row is None:
        raise RequestError(Code.NOT_FOUND, f"there is no model {name}")
    return decode_model(row.body), row


def require_version(model: str, number: int, row: Row | None) -> tuple[VersionRecord, Row]:
    """Decode a version's row. Raises RequestError not_found if there is none."""
    if row is None:
        raise RequestError(Code.NOT_FOUND, f"there is no version {number} of a model {model}")
    return decode_version(row.body), row
