"""Determined's models and their versions over those of `detcloud.Client`."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any

from detcloud.client import Model as ClusterModel
from detcloud.client import ModelVersion as ClusterModelVersion
from detcloud.compatibility.client_errors import raise_by_name
from detcloud.compatibility.handles import Checkpoint, Handle, OrderBy


class ModelSortBy(Enum):
    """The fields that a list of models is sorted by."""

    NAME = "name"
    DESCRIPTION = "description"
    CREATION_TIME = "creation_time"
    LAST_UPDATED_TIME = "last_updated_time"


ModelOrderBy = OrderBy


class ModelVersion(Handle):
    """A numbered checkpoint of a model."""

    _found: ClusterModelVersion

    def __getattr__(self, name: str) -> Any:
        """A field of the version, or of the checkpoint, which a version was up to 0.17."""
        if not name.startswith("_") and not hasattr(self._found, name):
            checkpoint = self.checkpoint
            if hasattr(checkpoint, name):
                return getattr(checkpoint, name)
        return super().__getattr__(name)

    @property
    def model_version(self) -> int:
        """The number."""
        return self._found.number

    @property
    def model_name(self) -> str:
        return self._found.model

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint that it is."""
        return Checkpoint(self._found.checkpoint())

    def set_name(self, name: str) -> None:
        self._found.set(name=name)

    def set_notes(self, notes: str) -> None:
        self._found.set(notes=notes)

    def delete(self) -> None:
        """Delete the version; the checkpoint stays."""
        self._found.delete()


class Model(Handle):
    """A name of the registry with versions."""

    _found: ClusterModel

    @property
    def workspace_id(self) -> str:
        """The name of its workspace."""
        return self._found.workspace

    @raise_by_name
    def get_version(self, version: int = -1) -> ModelVersion | None:
        """The version of that number, the newest one for -1; None where there is none at all."""
        if version != -1:
            return ModelVersion(self._found.version(version))
        return next(map(ModelVersion, self._found.versions()), None)

    def list_versions(self, order_by: OrderBy = OrderBy.DESC) -> list[ModelVersion]:
        """The versions, the newest first or last."""
        newest_first = [ModelVersion(one) for one in self._found.versions()]
        return newest_first[::-1] if order_by.value == OrderBy.ASC.value else newest_first

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
        """Make a checkpoint the next version."""
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
        """Set the entries of `metadata`; others stay."""
        self._found.refresh()
        self._set_metadata({**self._found.metadata, **metadata})

    def remove_metadata(self, keys: Iterable[str]) -> None:
        """Remove the entries under these keys."""
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
        """Put it under the name of another workspace."""
        self._found.move(workspace_name)

    def delete(self) -> None:
        """Delete it with its versions; the checkpoints stay."""
        self._found.delete()

    def _set_metadata(self, metadata: dict[str, Any]) -> None:
        self._found.set(metadata=metadata, revision=self._found.revision)
