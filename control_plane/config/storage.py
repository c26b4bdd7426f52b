"""Checkpoint storage and data layer: where checkpoints and cached data are stored."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    Field,
    PlainValidator,
    SerializeAsAny,
    ValidationInfo,
    field_validator,
)

from control_plane.config.resources import Propagation
from control_plane.config.section import (
    AbsolutePath,
    Prefix,
    Secret,
    Section,
    refuse,
    validate_variant,
)
from control_plane.field_types import CountOrZero, Text
from control_plane.findings import value_text


def _check_url(text: str) -> str:
    for part in text.split(";"):
        try:
            parts = urlsplit(part.strip())
            host, _ = parts.hostname, parts.port
        except ValueError:
            host = None
        if not host or not parts.scheme:
            refuse(f"must be a URL like http://host:port, not {value_text(text)}")
    return text


Url = Annotated[Text, AfterValidator(_check_url)]


class CheckpointStorage(Section):
    """How many checkpoints are kept; without a type the cluster says where."""

    type: str | None = None
    save_experiment_best: CountOrZero = 0
    """Checkpoints of the experiment that are kept for their metric when it ends."""
    save_trial_best: CountOrZero = 1
    """Checkpoints of each trial that are kept for their metric."""
    save_trial_latest: CountOrZero = 1
    """Checkpoints of each trial that are kept for being the latest."""


class SharedFs(CheckpointStorage):
    """A directory that every host mounts."""

    type: Literal["shared_fs"]
    host_path: AbsolutePath
    """The directory that every machine mounts."""
    storage_path: Text | None = None
    """A folder in it."""
    propagation: Propagation = "rprivate"
    """How mounts below it are passed on."""

    @field_validator("storage_path")
    @classmethod
    def _check_inside(cls, path: str | None, info: ValidationInfo) -> str | None:
        host = posixpath.normpath(info.data.get("host_path", "/"))
        whole = posixpath.normpath(posixpath.join(host, path or ""))
        if posixpath.commonpath((host, whole)) != host:
            refuse(f"must be relative or inside host_path, not {value_text(path)}")
        return path


class Directory(CheckpointStorage):
    """A directory that already exists in the container."""

    type: Literal["directory"]
    container_path: AbsolutePath
    """The directory."""


class Hdfs(CheckpointStorage):
    """HDFS through WebHDFS; several namenodes are separated by semicolons."""

    type: Literal["hdfs"]
    hdfs_url: Url
    """Namenodes, as http://host:port, separated by semicolons."""
    hdfs_path: AbsolutePath
    """A folder."""
    user: str | None = None
    """Who reads and writes."""


class S3(CheckpointStorage):
    """Amazon S3, or a store that speaks its protocol at `endpoint_url`.

    Trials write there and the cluster removes what is not kept, both with `access_key` or else with
    credentials of their own environment. Both need boto3 (`pip install 'detcloud[aws]'`), and leave
    to read, write, list and delete below the prefix.
    """

    type: Literal["s3"]
    bucket: Text
    """The bucket."""
    access_key: Secret | None = None
    """Instead of the environment's credentials."""
    secret_key: Secret | None = Field(default=None, validate_default=True)
    """Belongs to access_key."""
    endpoint_url: Url | None = None
    """Of a store other than Amazon's."""
    prefix: Prefix | None = None
    """Before every key."""

    @field_validator("secret_key")
    @classmethod
    def _check_pair(cls, value: Secret | None, info: ValidationInfo) -> Secret | None:
        if (value is None) != (info.data.get("access_key") is None):
            refuse("must be given together with access_key", "give both or neither", shown=False)
        return value


class Gcs(CheckpointStorage):
    """Google Cloud Storage, with the credentials of the environment."""

    type: Literal["gcs"]
    bucket: Text
    """The bucket."""
    prefix: Prefix | None = None
    """Before every key."""


class Azure(CheckpointStorage):
    """Azure Blob Storage, reached by a connection string or by an account's URL."""

    type: Literal["azure"]
    container: Text
    """The container."""
    connection_string: Secret | None = None
    """How it is reached; or else account_url."""
    account_url: Url | None = Field(default=None, validate_default=True)
    """How it is reached; or else connection_string."""
    credential: Secret | None = None
    """For account_url, instead of the environment's."""

    @field_validator("account_url", "credential")
    @classmethod
    def _check_alone(cls, value: Any, info: ValidationInfo) -> Any:
        connected = info.data.get("connection_string", "refused") is not None
        if value is not None and connected:
            refuse("must not be given beside connection_string", "keep one of them", shown=False)
        if value is None and not connected and info.field_name == "account_url":
            refuse("is required unless connection_string is given")
        return value


STORAGES: Final[Mapping[str, type[CheckpointStorage]]] = MappingProxyType(
    {
        "shared_fs": SharedFs,
        "directory": Directory,
        "hdfs": Hdfs,
        "s3": S3,
        "gcs": Gcs,
        "azure": Azure,
    }
)


def _parse_storage(value: object, info: ValidationInfo) -> CheckpointStorage:
    if isinstance(value, Mapping):
        given = {key for key, item in value.items() if item is not None}
        if given <= CheckpointStorage.model_fields.keys() - {"type"}:
            return CheckpointStorage.model_validate(value, context=info.context)
    return validate_variant(value, "type", STORAGES, info)


Storage = Annotated[SerializeAsAny[CheckpointStorage], PlainValidator(_parse_storage)]


class DataLayer(Section):
    """The data layer, which caches data."""

    type: str = "shared_fs"


class SharedFsLayer(DataLayer):
    """A directory of the agent's host."""

    type: Literal["shared_fs"] = "shared_fs"
    host_storage_path: AbsolutePath | None = None
    """The folder on the host."""
    container_storage_path: AbsolutePath | None = Field(default=None, validate_default=True)
    """Where it appears in the container."""

    @field_validator("container_storage_path")
    @classmethod
    def _check_pair(cls, path: str | None, info: ValidationInfo) -> str | None:
        return _check_mount_point(path, info, "host_storage_path")


class BucketLayer(DataLayer):
    """A folder in a bucket, with a copy on the agent's host if local paths are given."""

    bucket: Text
    """The bucket."""
    bucket_directory_path: Text
    """A folder in it."""
    local_cache_host_path: AbsolutePath | None = None
    """A cache on the host."""
    local_cache_container_path: AbsolutePath | None = Field(default=None, validate_default=True)
    """Where that appears in the container."""

    @field_validator("local_cache_container_path")
    @classmethod
    def _check_pair(cls, path: str | None, info: ValidationInfo) -> str | None:
        return _check_mount_point(path, info, "local_cache_host_path")


class GcsLayer(BucketLayer):
    """A folder in Google Cloud Storage."""

    type: Literal["gcs"]


class S3Layer(BucketLayer):
    """A folder in Amazon S3 or a store that speaks its protocol."""

    type: Literal["s3"]
    access_key: Secret | None = None
    """Instead of the environment's credentials."""
    secret_key: Secret | None = None
    """Belongs to access_key."""
    endpoint_url: Url | None = None
    """Of a store other than Amazon's."""


LAYERS: Final[Mapping[str, type[DataLayer]]] = MappingProxyType(
    {"shared_fs": SharedFsLayer, "gcs": GcsLayer, "s3": S3Layer}
)


def _parse_layer(value: object, info: ValidationInfo) -> DataLayer:
    if isinstance(value, Mapping) and value.get("type") is None:
        value = {**value, "type": "shared_fs"}
    return validate_variant(value, "type", LAYERS, info)


Layer = Annotated[SerializeAsAny[DataLayer], PlainValidator(_parse_layer)]


def _check_mount_point(path: str | None, info: ValidationInfo, host_field: str) -> str | None:
    if path is None and info.data.get(host_field) is not None:
        refuse(f"is required when {host_field} is given")
    return path
