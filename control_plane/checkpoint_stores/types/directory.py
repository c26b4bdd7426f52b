"""A checkpoint store in an existing folder of a trial's container or of a local cluster."""

from __future__ import annotations

from typing import Literal

from control_plane.checkpoint_stores.checkpoint_files import CheckpointFiles
from control_plane.checkpoint_stores.store_type import StorageFields, StoreType
from control_plane.config.section import AbsolutePath
from control_plane.config.storage import CheckpointStorage


class Directory(CheckpointStorage):
    """A directory that already exists in the container."""

    type: Literal["directory"]
    container_path: AbsolutePath
    """The directory."""


def open_folder(fields: StorageFields) -> CheckpointFiles:
    """Return the files of the folder `path` in a specification's `storage`, on this machine."""
    from control_plane.checkpoint_stores.folder_files import open_folder_files

    return open_folder_files(fields)


SPEC = StoreType[Directory](
    name="directory",
    listing_order=10,
    options=Directory,
    storage_fields=lambda options: {"type": "directory", "path": options.container_path},
    open_files=open_folder,
    display_name=lambda fields: fields["path"],
    location=lambda fields: {"path": fields["path"]},
)
