"""A folder that every machine mounts."""

from __future__ import annotations

import posixpath
from typing import Literal

from pydantic import ValidationInfo, field_validator

from control_plane.checkpoint_stores.store_type import StoreType
from control_plane.checkpoint_stores.types.directory import open_folder
from control_plane.config.resources import Propagation
from control_plane.config.section import AbsolutePath, refuse
from control_plane.config.storage import CheckpointStorage
from control_plane.field_types import Text
from control_plane.findings import value_text


class SharedFs(CheckpointStorage):
    """A directory that every host mounts."""

    type: Literal["shared_fs"]
    host_path: AbsolutePath
    """The directory that every machine mounts."""
    storage_path: Text | None = None
    """A folder in it."""
    propagation: Propagation = "rprivate"
    """How mounts below the directory are propagated. Only in containers."""
    container_path: str | None = None
    """Accepted, but has no effect: trials find the directory themselves."""
    checkpoint_path: str | None = None
    """Accepted, but has no effect: a former name of `storage_path`."""
    tensorboard_path: str | None = None
    """Accepted, but has no effect: event files are stored beside the checkpoints."""

    @field_validator("storage_path")
    @classmethod
    def _check_inside(cls, path: str | None, info: ValidationInfo) -> str | None:
        """Return the path unchanged. Raise PydanticCustomError for a path outside `host_path`."""
        host = posixpath.normpath(info.data.get("host_path", "/"))
        whole = posixpath.normpath(posixpath.join(host, path or ""))
        if posixpath.commonpath((host, whole)) != host:
            refuse(f"must be relative or inside host_path, not {value_text(path)}")
        return path


def _storage_fields(options: SharedFs) -> dict[str, str]:
    path = options.host_path
    if options.storage_path:
        path = posixpath.join(path, options.storage_path)
    return {"type": "shared_fs", "path": path}


SPEC = StoreType[SharedFs](
    name="shared_fs",
    listing_order=0,
    options=SharedFs,
    storage_fields=_storage_fields,
    open_files=open_folder,
    display_name=lambda fields: fields["path"],
    location=lambda fields: {"path": fields["path"]},
    host_paths=lambda options: {"host_path": options.host_path},
)
