"""A bucket of Google Cloud Storage."""

from __future__ import annotations

from typing import Literal

from control_plane.checkpoint_stores.checkpoint_files import CheckpointFiles
from control_plane.checkpoint_stores.store_type import (
    CredentialScope,
    RequiredPackage,
    StorageFields,
    StoreType,
)
from control_plane.config.section import Prefix
from control_plane.config.storage import CheckpointStorage
from control_plane.field_types import Text


class Gcs(CheckpointStorage):
    """Google Cloud Storage. The cluster uses the credentials of its environment. Trials use
    credentials that a cluster on Google Cloud issues, or the credentials of their machines. Both
    need google-cloud-storage (`pip install 'detcloud[gcs]'`), and permission to read, write, list
    and delete below the prefix.
    """

    type: Literal["gcs"]
    bucket: Text
    """The bucket."""
    prefix: Prefix | None = None
    """A prefix of every key."""


def _storage_fields(options: Gcs) -> dict[str, str]:
    prefix = {} if options.prefix is None else {"prefix": options.prefix}
    return {"type": "gcs", "bucket": options.bucket, **prefix}


def _open_files(fields: StorageFields) -> CheckpointFiles:
    from control_plane.checkpoint_stores.bucket_files import open_gcs_files

    return open_gcs_files(fields)


def _credential_scope(fields: StorageFields) -> CredentialScope:
    return CredentialScope(fields["bucket"], fields.get("prefix", ""))


def _display_name(fields: StorageFields) -> str:
    prefix = fields.get("prefix", "").strip("/")
    return "/".join(filter(None, ("gs:/", fields["bucket"], prefix)))


SPEC = StoreType[Gcs](
    name="gcs",
    listing_order=40,
    options=Gcs,
    storage_fields=_storage_fields,
    open_files=_open_files,
    display_name=_display_name,
    location=lambda fields: {name: value for name, value in fields.items() if name != "type"},
    required_package=RequiredPackage("google.cloud.storage", "detcloud[gcs]"),
    credential_scope=_credential_scope,
)
