"""Queries of registered models and model versions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from control_plane.queries.answer import Answer
from control_plane.queries.model_records import (
    MODELS,
    ModelRecord,
    VersionRecord,
    decode_model,
    decode_version,
    load_model,
    version_partition,
)
from control_plane.queries.pages import Page, PageRequest
from control_plane.queries.row_pages import read_row_page
from control_plane.state.table import Row, StateTable

# The most items of a page. Pages are short because a row may be long.
PAGE_MAX = 30


class Model(Answer):
    """A registered model; docs/api.md describes the fields."""

    name: str
    workspace: str
    description: str
    notes: str
    labels: list[str]
    metadata: dict[str, Any]
    archived: bool
    versions: int
    user: str
    created_ms: int
    updated_ms: int
    revision: int


class ModelVersion(Answer):
    """A version of a registered model; docs/api.md describes the fields."""

    model: str
    number: int
    name: str
    comment: str
    notes: str
    labels: list[str]
    metadata: dict[str, Any]
    checkpoint_uuid: str
    trial_id: int
    experiment_id: int
    steps_completed: int
    user: str
    created_ms: int
    updated_ms: int
    revision: int


@dataclass(frozen=True)
class ModelFilter:
    """Conditions on listed models, all of which must hold. None means no condition."""

    name: str | None = None
    """A part of the name. Upper and lower case are equal."""
    workspaces: Sequence[str] = ()
    """The allowed workspaces; empty allows all."""
    label: str | None = None
    """A label that the model has."""
    user: str | None = None
    """The user who created the model."""
    archived: Literal["false", "true", "all"] = "false"

    def fits(self, model: ModelRecord) -> bool:
        """Return whether the model meets all conditions."""
        return (
            (self.name is None or self.name.lower() in model.name.lower())
            and (not self.workspaces or model.workspace in self.workspaces)
            and (self.label is None or self.label in model.labels)
            and (self.user is None or self.user == model.user)
            and (self.archived == "all" or model.archived == (self.archived == "true"))
        )


def list_models(
    table: StateTable, shown: ModelFilter, page: PageRequest, *, descending: bool = False
) -> Page[Model]:
    """Return a page of the models that match the filter, sorted by name.

    A page has at most PAGE_MAX items, and may be short or empty although it has a cursor.

    Raises:
        RequestError: invalid, for a cursor of another list.
    """
    rows, cursor = read_row_page(
        table,
        MODELS,
        _short_page(page),
        descending=descending,
        is_wanted=lambda row: shown.fits(decode_model(row.body)),
    )
    items = [model_answer(decode_model(row.body), row.revision) for row in rows]
    return Page(items=items, next_cursor=cursor)


def list_versions(table: StateTable, model: str, page: PageRequest) -> Page[ModelVersion]:
    """Return a page of the model's versions, newest first, at most PAGE_MAX.

    Raises:
        RequestError: not_found, if the model does not exist; invalid, for a cursor of another list.
    """
    load_model(table, model)
    rows, cursor = read_row_page(
        table, version_partition(model), _short_page(page), descending=True
    )
    items = [_version_of_row(row) for row in rows]
    return Page(items=items, next_cursor=cursor)


def model_answer(model: ModelRecord, revision: int) -> Model:
    """Return the answer for a model; `revision` is the revision of the row."""
    fields = {**vars(model), "labels": list(model.labels), "revision": revision}
    del fields["versions_made"]
    return Model(**fields)


def version_answer(version: VersionRecord, revision: int) -> ModelVersion:
    """Return the answer for a model version; `revision` is the revision of the row."""
    return ModelVersion(**{**vars(version), "labels": list(version.labels), "revision": revision})


def _version_of_row(row: Row) -> ModelVersion:
    """Return the answer for the row of a model version."""
    return version_answer(decode_version(row.body), row.revision)


def _short_page(page: PageRequest) -> PageRequest:
    """Return the request with a limit of at most PAGE_MAX."""
    return PageRequest(min(page.limit, PAGE_MAX), page.cursor)
