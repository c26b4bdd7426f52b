"""Checkpoint storage and data layer: where checkpoints and cached data are stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    SerializationInfo,
    SerializeAsAny,
    TypeAdapter,
    ValidationInfo,
    field_validator,
)

from control_plane.checkpoint_stores.registry import store_types
from control_plane.config.section import (
    REVEAL,
    AbsolutePath,
    Secret,
    Section,
    refuse,
    validate_variant,
)
from control_plane.field_types import CountOrZero, Text
from control_plane.findings import mask_url_credentials, value_text


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


def _render_url(url: str, info: SerializationInfo) -> str:
    return url if info.context == REVEAL else mask_url_credentials(url)


Url = Annotated[Text, AfterValidator(_check_url), PlainSerializer(_render_url)]


class CheckpointStorage(Section):
    """How many checkpoints are kept; without a type the cluster says where.

    The section of a type is in its file of `control_plane/checkpoint_stores/types`.
    """

    type: str | None = None
    save_experiment_best: CountOrZero = 0
    """How many of the experiment's checkpoints with the best metrics are kept when it ends."""
    save_trial_best: CountOrZero = 1
    """How many of each trial's checkpoints with the best metrics are kept."""
    save_trial_latest: CountOrZero = 1
    """How many of each trial's latest checkpoints are kept."""


def storage_models() -> dict[str, type[CheckpointStorage]]:
    """The section of each type of checkpoint store, in the order of lists."""
    return {spec.name: spec.options for spec in store_types()}


def _parse_storage(value: object, info: ValidationInfo) -> CheckpointStorage:
    if isinstance(value, Mapping):
        given = {key for key, item in value.items() if item is not None}
        if given <= CheckpointStorage.model_fields.keys() - {"type"}:
            return CheckpointStorage.model_validate(value, context=info.context)
    return validate_variant(value, "type", storage_models(), info)


Storage = Annotated[SerializeAsAny[CheckpointStorage], PlainValidator(_parse_storage)]


def parse_storage(fields: Mapping[str, Any]) -> CheckpointStorage:
    """Parse a section that was checked when it was stored."""
    parsed: CheckpointStorage = TypeAdapter[CheckpointStorage](Storage).validate_python(fields)
    return parsed


def default_storage(
    cluster: Mapping[str, Any], above: Iterable[Mapping[str, Any]]
) -> Mapping[str, Any]:
    """The cluster's layer of a configuration without its store where a layer above it names one or
    any part of one: the cluster's keys would be shown to a server of the user's. The numbers of
    checkpoints to keep stay.
    """
    given = cluster.get("checkpoint_storage")
    shared = CheckpointStorage.model_fields.keys() - {"type"}
    sections = (layer.get("checkpoint_storage") for layer in above)
    named = {
        key
        for section in sections
        if isinstance(section, Mapping)
        for key, value in section.items()
        if value is not None
    }
    if not isinstance(given, Mapping) or named <= shared:
        return cluster
    kept = {key: value for key, value in given.items() if key in shared}
    return {**cluster, "checkpoint_storage": kept}


class DataLayer(Section):
    """The place of the data sets that training code caches."""

    type: str = "shared_fs"


class SharedFsLayer(DataLayer):
    """A directory of the agent's host, which several machines may mount."""

    type: Literal["shared_fs"] = "shared_fs"
    host_storage_path: AbsolutePath | None = None
    """The folder on the host; if absent, one that belongs to the agent, or in a container one that
    is removed with it.
    """
    container_storage_path: AbsolutePath | None = None
    """Where the folder appears; if absent, at the host's path. Another works only in containers."""


class BucketLayer(DataLayer):
    """A folder in a bucket, with a copy on the agent's host if local paths are given."""

    bucket: Text
    """The bucket."""
    bucket_directory_path: Text
    """A folder in it."""
    local_cache_host_path: AbsolutePath | None = None
    """The folder on the host for the copies that are read; if absent, as for shared_fs."""
    local_cache_container_path: AbsolutePath | None = Field(default=None, validate_default=True)
    """Where the folder appears. A path other than the host's works only in containers."""

    @field_validator("local_cache_container_path")
    @classmethod
    def _check_pair(cls, path: str | None, info: ValidationInfo) -> str | None:
        host = info.data.get("local_cache_host_path", path)
        if path is not None and host is None:
            refuse("needs local_cache_host_path", "name the folder of the host that appears there")
        if path is None and host is not None:
            refuse("is required when local_cache_host_path is given")
        return path


class GcsLayer(BucketLayer):
    """A folder in Google Cloud Storage."""

    type: Literal["gcs"]


class S3Layer(BucketLayer):
    """A folder in Amazon S3 or a store that speaks its protocol."""

    type: Literal["s3"]
    access_key: Secret | None = None
    """The access key, used instead of the credentials of the trial's environment."""
    secret_key: Secret | None = None
    """The secret for access_key."""
    endpoint_url: Url | None = None
    """The URL of a store other than Amazon's."""


LAYERS: Final[Mapping[str, type[DataLayer]]] = MappingProxyType(
    {"shared_fs": SharedFsLayer, "gcs": GcsLayer, "s3": S3Layer}
)


def _parse_layer(value: object, info: ValidationInfo) -> DataLayer:
    if isinstance(value, Mapping) and value.get("type") is None:
        value = {**value, "type": "shared_fs"}
    return validate_variant(value, "type", LAYERS, info)


Layer = Annotated[SerializeAsAny[DataLayer], PlainValidator(_parse_layer)]
