"""Handles on the models of the registry and their versions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from detcloud.client.checkpoint import Checkpoint
from detcloud.client.resource import Field, Resource, path_segment
from detcloud.shared.errors import DetcloudError

# What a list may be sorted by, and the field that has it.
SORT_FIELDS = {
    "name": "name",
    "description": "description",
    "creation_time": "created_ms",
    "last_updated_time": "updated_ms",
}


class ModelVersion(Resource):
    """A numbered checkpoint of a model, which is kept as long as the version exists."""

    model = Field[str]("The model's name.")
    number = Field[int]("The number, from 1 in each model.")
    name = Field[str]("What it is called; may be empty.")
    comment = Field[str]("A short text about it.")
    notes = Field[str]("A long text about it.")
    labels = Field[list[str]]("Words to find it by.")
    metadata = Field[dict[str, Any]]("Anything else that JSON can hold.")
    checkpoint_uuid = Field[str]("The checkpoint's UUID.")
    trial_id = Field[int]("The trial that stored the checkpoint.")
    experiment_id = Field[int]("The trial's experiment.")
    steps_completed = Field[int]("Batches trained before the checkpoint was stored.")
    user = Field[str]("Who registered it.")
    created_ms = Field[int]("When it was registered, epoch milliseconds.")
    updated_ms = Field[int]("When it was last changed, epoch milliseconds.")
    revision = Field[int]("Grows with each change, for `set(revision=...)`.")

    def __repr__(self) -> str:
        return f"ModelVersion({self.model!r}, {self.number})"

    def refresh(self) -> None:
        """Asks the cluster for the present state."""
        self.data = self._client.get(version_path(self.model, self.number))

    def set(self, **fields: Any) -> None:
        """Changes `name`, `comment`, `notes`, `labels` or `metadata`.

        With `revision`, only if it is of that revision still.
        """
        self.data = self._client.patch(version_path(self.model, self.number), fields)

    def delete(self) -> None:
        """Deletes the version; unless another holds it, its checkpoint is one like others again."""
        self._client.delete(version_path(self.model, self.number))

    def checkpoint(self) -> Checkpoint:
        """The checkpoint that it is."""
        return self._client.checkpoint(self.checkpoint_uuid)

    def export(
        self, destination: str | Path, on_progress: Callable[[int, int], None] | None = None
    ) -> dict[str, Any]:
        """Writes its checkpoint, code, configuration and a manifest to a new or empty folder.

        Returns the manifest, whose `load` is the Python that loads it there, or None where only
        the code that stored it can. `on_progress` gets the bytes that came and the bytes in all.

        Raises:
            DetcloudError: the folder has files or takes none, or what came is not what was stored.
        """
        from detcloud.client.model_export import export_version

        return export_version(self._client, self, Path(destination), on_progress)


class Model(Resource):
    """A name of the registry with versions, each of them a checkpoint."""

    name = Field[str]("The name, which stays.")
    workspace = Field[str]("A name that models are listed by.")
    description = Field[str]("What it is.")
    notes = Field[str]("A long text about it.")
    labels = Field[list[str]]("Words to find it by.")
    metadata = Field[dict[str, Any]]("Anything else that JSON can hold.")
    archived = Field[bool]("Whether lists leave it out and it takes no versions and changes.")
    user = Field[str]("Whose it is.")
    created_ms = Field[int]("When it was made, epoch milliseconds.")
    updated_ms = Field[int]("When it or its number of versions last changed, epoch milliseconds.")
    revision = Field[int]("Grows with each change, for `set(revision=...)`.")

    def refresh(self) -> None:
        """Asks the cluster for the present state."""
        self.data = self._client.get(model_path(self.name))

    def set(self, **fields: Any) -> None:
        """Changes `description`, `notes`, `labels`, `metadata`, `workspace` or `archived`.

        With `revision`, only if it is of that revision still.
        """
        self.data = self._client.patch(model_path(self.name), fields)

    def archive(self) -> None:
        """Leaves it out of lists; it takes no versions and no changes."""
        self.set(archived=True)

    def unarchive(self) -> None:
        """Shows it in lists again."""
        self.set(archived=False)

    def move(self, workspace: str) -> None:
        """Puts it under the name of another workspace."""
        self.set(workspace=workspace)

    def delete(self) -> None:
        """Deletes it with its versions; their checkpoints are ones like others again."""
        self._client.delete(model_path(self.name))

    def versions(self) -> Iterator[ModelVersion]:
        """The versions, newest first; pages are fetched as they are needed."""
        items = self._client.items(f"{model_path(self.name)}/versions")
        return (ModelVersion(self._client, item) for item in items)

    def version(self, number: int | None = None) -> ModelVersion:
        """The version of this number, or the newest one.

        Raises:
            DetcloudError: it has none.
        """
        if number is not None:
            return ModelVersion(self._client, self._client.get(version_path(self.name, number)))
        for newest in self._client.items(f"{model_path(self.name)}/versions", 1):
            return ModelVersion(self._client, newest)
        raise DetcloudError(f"model {self.name} has no versions; register_version adds one")

    def register_version(self, checkpoint_uuid: str, **fields: Any) -> ModelVersion:
        """Makes a checkpoint, by its UUID or a unique beginning of it, the next version.

        `fields` are any of `name`, `comment`, `notes`, `labels` and `metadata`.
        """
        body = {"checkpoint_uuid": checkpoint_uuid, **fields}
        made = self._client.post(f"{model_path(self.name)}/versions", body)
        return ModelVersion(self._client, made)


def sort_models(models: Iterator[Model], sort_by: str, *, descending: bool) -> list[Model]:
    """Sort models by a key of SORT_FIELDS, and then by name.

    Raises:
        DetcloudError: there is no such key.
    """
    if sort_by not in SORT_FIELDS:
        raise DetcloudError(f"models are sorted by {', '.join(SORT_FIELDS)}; not by {sort_by!r}")
    field = SORT_FIELDS[sort_by]
    by_name = sorted(models, key=lambda model: model.name)
    return sorted(by_name, key=lambda model: model.data[field], reverse=descending)


def workspaces_text(workspaces: Sequence[str]) -> str | None:
    """The names of workspaces as a query has them, None for none.

    Raises:
        DetcloudError: a name has a comma.
    """
    for name in workspaces:
        if "," in name:
            raise DetcloudError(f"workspace {name!r}: no workspace has a comma in its name")
    return ",".join(workspaces) or None


def model_path(name: str) -> str:
    """The model's path below the API's base path."""
    return f"/models/{path_segment(name)}"


def version_path(model: str, number: int) -> str:
    """The path of a model's version below the API's base path."""
    return f"{model_path(model)}/versions/{path_segment(number)}"
