"""A folder in HDFS, which no cluster can use yet."""

from __future__ import annotations

from typing import Literal

from control_plane.checkpoint_stores.store_type import StoreType
from control_plane.config.section import AbsolutePath
from control_plane.config.storage import CheckpointStorage, Url


class Hdfs(CheckpointStorage):
    """HDFS through WebHDFS; several namenodes are separated by semicolons."""

    type: Literal["hdfs"]
    hdfs_url: Url
    """Namenodes, as http://host:port, separated by semicolons."""
    hdfs_path: AbsolutePath
    """A folder."""
    user: str | None = None
    """Who reads and writes."""


SPEC = StoreType[Hdfs](name="hdfs", listing_order=20, options=Hdfs)
