"""A bucket of Amazon S3, or of a store that speaks its protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from control_plane.checkpoint_stores.checkpoint_files import CheckpointFiles
from control_plane.checkpoint_stores.store_type import (
    CredentialScope,
    RequiredPackage,
    StorageFields,
    StoreType,
)
from control_plane.config.section import Prefix, Secret, refuse
from control_plane.config.storage import CheckpointStorage, Url
from control_plane.field_types import Text
from control_plane.findings import Finding
from detcloud.shared.bucket_place import BucketPlace


class S3(CheckpointStorage):
    """Amazon S3, or a store that speaks its protocol at `endpoint_url`. Trials write checkpoints,
    and the cluster deletes checkpoints that are not kept, both with `access_key`. Without a key,
    the cluster uses the credentials of its environment. Trials use credentials that the cluster
    issues, or the role of their machine. Variables like AWS_ACCESS_KEY_ID are only for the trials'
    code. Both need boto3 (`pip install 'detcloud[aws]'`), and permission to read, write, list and
    delete below the prefix.
    """

    type: Literal["s3"]
    bucket: Text
    """The bucket."""
    access_key: Secret | None = None
    """The access key, instead of the cluster's credentials and of credentials that it issues."""
    secret_key: Secret | None = Field(default=None, validate_default=True)
    """The secret for access_key."""
    endpoint_url: Url | None = None
    """The URL of a store other than Amazon's. A cluster in a cloud calls only stores in
    `checkpoint_endpoints` of its configuration.

    The store may lack newer checksums, conditional writes, ranges and lists of uploads. detcloud
    detects missing features and works without them.
    """
    prefix: Prefix | None = None
    """A prefix of every key."""

    @field_validator("secret_key")
    @classmethod
    def _check_pair(cls, value: Secret | None, info: ValidationInfo) -> Secret | None:
        """Return the secret key unchanged. Raise PydanticCustomError if only one key is set."""
        if (value is None) != (info.data.get("access_key") is None):
            refuse("must be set together with access_key", "set both or neither", shown=False)
        return value


def _storage_fields(options: S3) -> dict[str, str]:
    access_key, secret_key = options.access_key, options.secret_key
    fields = {
        "type": "s3",
        "bucket": options.bucket,
        "prefix": options.prefix,
        "endpoint_url": options.endpoint_url,
        "access_key": access_key.reveal() if access_key else None,
        "secret_key": secret_key.reveal() if secret_key else None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _open_files(fields: StorageFields) -> CheckpointFiles:
    from control_plane.checkpoint_stores.bucket_files import open_bucket_files

    return open_bucket_files(fields)


def _display_name(fields: StorageFields) -> str:
    from control_plane.checkpoint_stores.bucket_files import bucket_name

    return bucket_name(fields)


def _location(fields: StorageFields) -> Mapping[str, str]:
    location = {name: fields[name] for name in ("bucket", "prefix") if name in fields}
    if endpoint_url := BucketPlace.from_storage(fields).endpoint_url:
        location["endpoint_url"] = endpoint_url
    return location


def _credential_scope(fields: StorageFields) -> CredentialScope | None:
    if "access_key" in fields:
        return None
    return CredentialScope(fields["bucket"], fields.get("prefix", ""))


def _endpoints(options: S3) -> Mapping[str, str]:
    return {"endpoint_url": options.endpoint_url} if options.endpoint_url else {}


def _find_credential_problem(options: S3) -> Finding | None:
    """Return a Finding for a store other than Amazon's without an access key, else None."""
    if options.access_key is not None or not options.endpoint_url:
        return None
    # A server other than Amazon's would receive requests that the cluster's credentials signed.
    text = "a store other than Amazon's needs access_key and secret_key here"
    return Finding(("endpoint_url",), text)


SPEC = StoreType[S3](
    name="s3",
    listing_order=30,
    options=S3,
    storage_fields=_storage_fields,
    open_files=_open_files,
    display_name=_display_name,
    location=_location,
    required_package=RequiredPackage("boto3", "detcloud[aws]"),
    credential_scope=_credential_scope,
    endpoints=_endpoints,
    find_credential_problem=_find_credential_problem,
)
