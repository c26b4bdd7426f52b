"""The handles of registered models and model versions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from detcloud.client.handles import Checkpoint, read_checkpoint
from detcloud.client.resource import Field, Resource, path_segment
from detcloud.shared.errors import DetcloudError

# The field of a model by each key that lists can be sorted by.
SORT_FIELDS = {
    "name": "name",
    "description": "description",
    "creation_time": "created_ms",
    "last_updated_time": "updated_ms",
    "num_versions": "versions",
    "workspace": "workspace",
}


class ModelVersion(Resource):
    """A numbered version of a model. Its checkpoint is kept as long as the version exists.

    The fields are those of the cluster's latest answer to this handle.
    """

    model = Field[str]("The name of the model.")
    number = Field[int]("The number of the version, from 1 in each model.")
    name = Field[str]("The name of the version; empty without one.")
    comment = Field[str]("The short comment on the version; empty without one.")
    notes = Field[str]("The long notes on the version; empty without notes.")
    labels = Field[list[str]]("The labels by which the version can be found; empty without any.")
    metadata = Field[dict[str, Any]]("The metadata as JSON; empty without any.")
    checkpoint_uuid = Field[str]("The UUID of the checkpoint.")
    trial_id = Field[int]("The id of the trial that stored the checkpoint.")
    experiment_id = Field[int]("The id of the trial's experiment.")
    steps_completed = Field[int]("The number of batches trained before the checkpoint was stored.")
    user = Field[str]("The user who registered the version.")
    created_ms = Field[int]("The time of the registration, in epoch milliseconds.")
    updated_ms = Field[int]("The time of the last change, in epoch milliseconds.")
    revision = Field[int]("The revision for `set(revision=...)`; each change increases the number.")

    def __repr__(self) -> str:
        return f"ModelVersion({self.model!r}, {self.number})"

    def refresh(self) -> None:
        """Read all fields of this handle from the cluster again."""
        self.data = self._client.get(version_path(self.model, self.number))

    def set(self, **fields: Any) -> None:
        """Change fields of the version, and update this handle. Other fields stay as they are.

        Args:
            fields: any of `name`, `comment`, `notes`, `labels` and `metadata`, and `revision` for
                the revision that the change is based on.

        Raises:
            detcloud.shared.http.ApiError: `conflict`, if the version has another `revision`.
        """
        self.data = self._client.patch(version_path(self.model, self.number), fields)

    def delete(self) -> None:
        """Delete the version. The checkpoint stays, but this version no longer keeps it from
        deletion.
        """
        self._client.delete(version_path(self.model, self.number))

    def checkpoint(self) -> Checkpoint:
        """Read the version's checkpoint from the cluster, and return the checkpoint."""
        return read_checkpoint(self._client, self.checkpoint_uuid)

    def export(
        self, destination: str | Path, on_progress: Callable[[int, int], None] | None = None
    ) -> dict[str, Any]:
        """Write the checkpoint, code, configuration and a manifest to a folder, and return the
        manifest.

        `load` in the manifest is the Python code that loads the checkpoint from that folder, or
        None if only the code that stored the checkpoint can load it.

        Args:
            destination: a new or empty folder.
            on_progress: called with the bytes of the checkpoint received and the total bytes.

        Raises:
            DetcloudError: the folder is not empty or cannot be written, or a download does not
                match its recorded digest. Nothing of the export is left in the folder.
        """
        from detcloud.client.model_export import export_version

        return export_version(self._client, self, Path(destination), on_progress)


class Model(Resource):
    """A named model of the registry. Each of its versions is a checkpoint.

    The fields are those of the cluster's latest answer to this handle.
    """

    name = Field[str]("The name of the model, which never changes.")
    workspace = Field[str]("The workspace by which models can be listed.")
    description = Field[str]("The short description of the model; empty without one.")
    notes = Field[str]("The long notes on the model; empty without notes.")
    labels = Field[list[str]]("The labels by which the model can be found; empty without any.")
    metadata = Field[dict[str, Any]]("The metadata as JSON; empty without any.")
    archived = Field[bool](
        "Whether lists leave out the model, and versions and changes are refused."
    )
    user = Field[str]("The user who owns the model.")
    created_ms = Field[int]("The time of the creation, in epoch milliseconds.")
    updated_ms = Field[int]("The time of the last change or new version, in epoch milliseconds.")
    revision = Field[int]("The revision for `set(revision=...)`; each change increases the number.")

    def refresh(self) -> None:
        """Read all fields of this handle from the cluster again."""
        self.data = self._client.get(model_path(self.name))

    def set(self, **fields: Any) -> None:
        """Change fields of the model, and update this handle. Other fields stay as they are.

        An archived model accepts only `archived=False`.

        Args:
            fields: any of `description`, `notes`, `labels`, `metadata`, `workspace` and `archived`,
                and `revision` for the revision that the change is based on.

        Raises:
            detcloud.shared.http.ApiError: `conflict`, if the model has another `revision`.
        """
        self.data = self._client.patch(model_path(self.name), fields)

    def archive(self) -> None:
        """Leave the model out of lists by default, and refuse new versions and changes."""
        self.set(archived=True)

    def unarchive(self) -> None:
        """Show the model in lists again, and accept versions and changes."""
        self.set(archived=False)

    def move(self, workspace: str) -> None:
        """Move the model to another workspace."""
        self.set(workspace=workspace)

    def delete(self) -> None:
        """Delete the model and all versions. The checkpoints stay.

        The deleted versions no longer protect their checkpoints from garbage collection.
        """
        self._client.delete(model_path(self.name))

    def versions(self) -> Iterator[ModelVersion]:
        """Return an iterator over the versions, newest first. Pages are fetched when needed."""
        items = self._client.items(f"{model_path(self.name)}/versions")
        return (ModelVersion(self._client, item) for item in items)

    def version(self, number: int | None = None) -> ModelVersion:
        """Return the version with this number, or by default the newest version.

        Raises:
            DetcloudError: the model has no versions, or no version with this number.
        """
        if number is not None:
            return ModelVersion(self._client, self._client.get(version_path(self.name, number)))
        for newest in self._client.items(f"{model_path(self.name)}/versions", 1):
            return ModelVersion(self._client, newest)
        raise DetcloudError(f"model {self.name} has no versions; register_version adds one")

    def register_version(self, checkpoint_uuid: str, **fields: Any) -> ModelVersion:
        """Register a checkpoint as the model's next version, and return the version.

        The checkpoint is kept as long as the version exists.

        Args:
            checkpoint_uuid: the checkpoint's UUID, or a unique prefix.
            fields: any of `name`, `comment`, `notes`, `labels` and `metadata`.

        Raises:
            detcloud.shared.http.ApiError: the model is archived or another user's, or the
                checkpoint is not COMPLETED.
        """
        body = {"checkpoint_uuid": checkpoint_uuid, **fields}
        made = self._client.post(f"{model_path(self.name)}/versions", body)
        return ModelVersion(self._client, made)


def sort_models(models: Iterator[Model], sort_by: str, *, descending: bool) -> list[Model]:
    """Return the models sorted by a key of SORT_FIELDS. Models with equal values are sorted by
    name.

    Raises:
        DetcloudError: SORT_FIELDS has no such key.
    """
    if sort_by not in SORT_FIELDS:
        raise DetcloudError(f"models are sorted by {', '.join(SORT_FIELDS)}; not by {sort_by!r}")
    field = SORT_FIELDS[sort_by]
    by_name = sorted(models, key=lambda model: model.name)
    return sorted(by_name, key=lambda model: model.data[field], reverse=descending)


def workspaces_text(workspaces: Sequence[str]) -> str | None:
    """Join names of workspaces by commas for a query. Return None if `workspaces` is empty.

    Raises:
        DetcloudError: a name contains a comma.
    """
    for name in workspaces:
        if "," in name:
            raise DetcloudError(f"workspace {name!r}: no workspace has a comma in its name")
    return ",".join(workspaces) or None


def model_path(name: str) -> str:
    """Return the model's path below /api/v1. Raises DetcloudError for an impossible name."""
    return f"/models/{path_segment(name)}"


def version_path(model: str, number: int) -> str:
    """Return the path of a version below /api/v1. Raises DetcloudError for an impossible name."""
    return f"{model_path(model)}/versions/{path_segment(number)}"
