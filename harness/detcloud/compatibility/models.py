"""Determined's models and model versions over those of `detcloud.Client`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Any, ClassVar

from detcloud.client import Model as ClusterModel
from detcloud.client import ModelVersion as ClusterModelVersion
from detcloud.compatibility.checkpoints import Checkpoint
from detcloud.compatibility.client_errors import raise_by_name
from detcloud.compatibility.handles import Handle, OrderBy, is_ascending


class ModelSortBy(Enum):
    """The fields by which lists of models are sorted."""

    NAME = "name"
    DESCRIPTION = "description"
    CREATION_TIME = "creation_time"
    LAST_UPDATED_TIME = "last_updated_time"
    NUM_VERSIONS = "num_versions"
    WORKSPACE = "workspace"


ModelOrderBy = OrderBy


class ModelVersion(Handle):
    """A numbered version of a model."""

    instead: ClassVar[Mapping[str, str]] = {
        "model_id": "use ModelVersion.model_name; a model's name is also the id",
        "get_metrics": "use ModelVersion.checkpoint and Trial.iter_metrics(group) of its trial",
        "iter_metrics": "use ModelVersion.checkpoint and Trial.iter_metrics(group) of its trial",
    }

    _found: ClusterModelVersion

    def __getattr__(self, name: str) -> Any:
        """Return a field of the version or of its checkpoint, which a version was up to 0.17.

        Raises AttributeError for other names.
        """
        if not name.startswith("_") and not hasattr(self._found, name):
            checkpoint = self.checkpoint
            if hasattr(checkpoint, name):
                return getattr(checkpoint, name)
        return super().__getattr__(name)

    @property
    def model_version(self) -> int:
        """The number of the version."""
        return self._found.number

    @property
    def model_name(self) -> str:
        return self._found.model

    @property
    def checkpoint(self) -> Checkpoint:
        """The version's checkpoint."""
        return Checkpoint(self._found.checkpoint())

    @property
    def creation_time(self) -> datetime:
        return datetime.fromtimestamp(self._found.created_ms / 1000, UTC)

    def set_name(self, name: str) -> None:
        self._found.set(name=name)

    def set_notes(self, notes: str) -> None:
        self._found.set(notes=notes)

    def delete(self) -> None:
        """Delete the version. The checkpoint stays."""
        self._found.delete()


class Model(Handle):
    """A named model of the registry, with versions."""

    instead: ClassVar[Mapping[str, str]] = {
        "model_id": "use Model.name; a model's name is also the id"
    }

    _found: ClusterModel

    @property
    def creation_time(self) -> datetime:
        return datetime.fromtimestamp(self._found.created_ms / 1000, UTC)

    @property
    def last_updated_time(self) -> datetime:
        """The time of the last change of the model or of the number of versions."""
        return datetime.fromtimestamp(self._found.updated_ms / 1000, UTC)

    @property
    def username(self) -> str:
        return self._found.user

    @property
    def workspace_id(self) -> str:
        """The name of the workspace."""
        return self._found.workspace

    @raise_by_name
    def get_version(self, version: int = -1) -> ModelVersion | None:
        """Return the version with this number, or the newest version for -1.

        Return None for -1 if the model has no versions. Raises NotFoundException for an unknown
        number.
        """
        if version != -1:
            return ModelVersion(self._found.version(version))
        return next(map(ModelVersion, self._found.versions()), None)

    def list_versions(self, order_by: OrderBy = OrderBy.DESC) -> list[ModelVersion]:
        """Return all versions, the newest first, or last for ascending order."""
        newest_first = [ModelVersion(one) for one in self._found.versions()]
        return newest_first[::-1] if is_ascending(order_by) else newest_first

    get_versions = list_versions

    def register_version(
        self,
        checkpoint_uuid: str,
        name: str = "",
        comment: str = "",
        notes: str = "",
        metadata: dict[str, Any] | None = None,
        labels: Iterable[str] = (),
    ) -> ModelVersion:
        """Register a checkpoint as the next version, and return the version.

        `checkpoint_uuid` may be a unique prefix.
        """
        version = self._found.register_version(
            checkpoint_uuid,
            name=name,
            comment=comment,
            notes=notes,
            metadata=metadata or {},
            labels=list(labels),
        )
        return ModelVersion(version)

    def add_metadata(self, metadata: dict[str, Any]) -> None:
        """Set entries of the metadata. Other entries stay.

        Raises ApiError (`conflict`) if another change is made at the same time.
        """
        self._found.refresh()
        self._set_metadata({**self._found.metadata, **metadata})

    def remove_metadata(self, keys: Iterable[str]) -> None:
        """Remove entries of the metadata. Keys that the metadata lacks are ignored.

        Raises ApiError (`conflict`) if another change is made at the same time.
        """
        self._found.refresh()
        removed = set(keys)
        kept = {key: value for key, value in self._found.metadata.items() if key not in removed}
        self._set_metadata(kept)

    def set_labels(self, labels: Iterable[str]) -> None:
        self._found.set(labels=list(labels))

    def set_description(self, description: str) -> None:
        self._found.set(description=description)

    def archive(self) -> None:
        self._found.archive()

    def unarchive(self) -> None:
        self._found.unarchive()

    def move_to_workspace(self, workspace_name: str) -> None:
        """Move the model to another workspace."""
        self._found.move(workspace_name)

    def delete(self) -> None:
        """Delete the model and all versions. The checkpoints stay."""
        self._found.delete()

    def _set_metadata(self, metadata: dict[str, Any]) -> None:
        self._found.set(metadata=metadata, revision=self._found.revision)
