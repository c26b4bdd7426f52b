"""A folder in HDFS."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from control_plane.checkpoint_stores.checkpoint_files import CheckpointFiles
from control_plane.checkpoint_stores.store_type import StorageFields, StoreType
from control_plane.config.section import AbsolutePath
from control_plane.config.storage import CheckpointStorage, Url
from control_plane.field_types import Text
from detcloud.shared.bucket_place import without_login


class Hdfs(CheckpointStorage):
    """HDFS through WebHDFS, for HDFS clusters that accept a user's name without Kerberos. Trials
    write checkpoints, and the cluster deletes checkpoints that are not kept, both as `user`. Both
    must reach the datanodes, too.
    """

    type: Literal["hdfs"]
    hdfs_url: Url
    """The namenodes, as http://host:port, separated by semicolons. The active namenode is used.
    """
    hdfs_path: AbsolutePath
    """The folder."""
    user: Text | None = None
    """The user who reads and writes; if absent, HDFS's user for anonymous requests."""


def _storage_fields(options: Hdfs) -> dict[str, str]:
    user = {} if options.user is None else {"user": options.user}
    places = {"hdfs_url": options.hdfs_url, "hdfs_path": options.hdfs_path}
    return {"type": "hdfs", **places, **user}


def _open_files(fields: StorageFields) -> CheckpointFiles:
    from control_plane.checkpoint_stores.hdfs_files import open_hdfs_files

    return open_hdfs_files(fields)


def _display_name(fields: StorageFields) -> str:
    from control_plane.checkpoint_stores.hdfs_files import hdfs_name

    return hdfs_name(fields)


def _location(fields: StorageFields) -> Mapping[str, str]:
    urls = ";".join(without_login(url.strip()) for url in fields["hdfs_url"].split(";"))
    return {**{name: value for name, value in fields.items() if name != "type"}, "hdfs_url": urls}


SPEC = StoreType[Hdfs](
    name="hdfs",
    listing_order=20,
    options=Hdfs,
    storage_fields=_storage_fields,
    open_files=_open_files,
    display_name=_display_name,
    location=_location,
    endpoints=lambda options: {"hdfs_url": options.hdfs_url},
)
