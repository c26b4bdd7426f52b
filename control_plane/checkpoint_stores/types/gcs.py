"""A bucket of Google Cloud Storage, which no cluster can use yet."""

from __future__ import annotations

from typing import Literal

from control_plane.checkpoint_stores.store_type import StoreType
from control_plane.config.section import Prefix
from control_plane.config.storage import CheckpointStorage
from control_plane.field_types import Text


class Gcs(CheckpointStorage):
    """Google Cloud Storage, with the credentials of the environment."""

    type: Literal["gcs"]
    bucket: Text
    """The bucket."""
    prefix: Prefix | None = None
    """Before every key."""


SPEC = StoreType[Gcs](name="gcs", listing_order=40, options=Gcs)
