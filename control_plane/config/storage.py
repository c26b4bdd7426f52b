"""The sections `checkpoint_storage` and `data_layer`: the stores of checkpoints and cached data."""

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
from control_plane.findings import value_text
from detcloud.shared.masking import mask_urls


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
    return url if info.context == REVEAL else mask_urls(url)


Url = Annotated[Text, AfterValidator(_check_url), PlainSerializer(_render_url)]


class CheckpointStorage(Section):
    """The numbers of checkpoints to keep. Without a type, the store is the cluster's.

    The section of each type is in `control_plane/checkpoint_stores/types`.
    """

    type: str | None = None
    save_experiment_best: CountOrZero = 0
    """The number of the experiment's checkpoints with the best metrics to keep when the experiment
    ends.
    """
    save_trial_best: CountOrZero = 1
    """The number of each trial's checkpoints with the best metrics to keep."""
    save_trial_latest: CountOrZero = 1
    """The number of each trial's latest checkpoints to keep."""


def storage_models() -> dict[str, type[CheckpointStorage]]:
    """Return the section of each registered type of checkpoint store, by the type's name.

    The types are sorted by their listing order and name.
    """
    return {spec.name: spec.options for spec in store_types()}


def _parse_storage(value: object, info: ValidationInfo) -> CheckpointStorage:
    if isinstance(value, Mapping):
        given = {key for key, item in value.items() if item is not None}
        if given <= CheckpointStorage.model_fields.keys() - {"type"}:
            return CheckpointStorage.model_validate(value, context=info.context)
    return validate_variant(value, "type", storage_models(), info)


Storage = Annotated[SerializeAsAny[CheckpointStorage], PlainValidator(_parse_storage)]


def parse_storage(fields: Mapping[str, Any]) -> CheckpointStorage:
    """Return the section in stored fields, which were valid at the time of storage.

    Raises:
        ValidationError: the fields are not valid.
    """
    parsed: CheckpointStorage = TypeAdapter[CheckpointStorage](Storage).validate_python(fields)
    return parsed


def default_storage(
    cluster: Mapping[str, Any], above: Iterable[Mapping[str, Any]]
) -> Mapping[str, Any]:
    """Return the cluster's layer without the checkpoint store if an upper layer configures a store.

    With the store, a user could send the cluster's keys to another server. The numbers of
    checkpoints to keep stay in the layer. If no upper layer sets a field of a store, return
    `cluster` itself.

    Args:
        cluster: the cluster's layer of a configuration. Not changed.
        above: the upper layers.
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
    """The store of the data sets that training code caches."""

    type: str = "shared_fs"


class SharedFsLayer(DataLayer):
    """A directory of the agent's host, which may be on a file system of several machines."""

    type: Literal["shared_fs"] = "shared_fs"
    host_storage_path: AbsolutePath | None = None
    """The folder on the host. If absent, processes use a folder of the agent, and containers use a
    folder that is removed with the container.
    """
    container_storage_path: AbsolutePath | None = None
    """The path of the folder for the trial; by default the path on the host. Another path works
    only in containers.
    """


class BucketLayer(DataLayer):
    """A folder in a bucket, with a copy on the agent's host if local paths are given."""

    bucket: Text
    """The name of the bucket."""
    bucket_directory_path: Text
    """The folder in the bucket."""
    local_cache_host_path: AbsolutePath | None = None
    """The folder on the host for local copies of the data sets. If absent, the folder is the same
    as for `shared_fs`.
    """
    local_cache_container_path: AbsolutePath | None = Field(default=None, validate_default=True)
    """The path of the local folder for the trial. Required with `local_cache_host_path`. Another
    path than the host's works only in containers.
    """

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
    """A folder in Amazon S3 or a store with the same protocol."""

    type: Literal["s3"]
    access_key: Secret | None = None
    """The access key, in place of the credentials in the trial's environment."""
    secret_key: Secret | None = None
    """The secret key for `access_key`."""
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
