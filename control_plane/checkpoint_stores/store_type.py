"""The specification of a type of checkpoint store.

The rest of the server uses a type only through its specification. Each file of
control_plane/checkpoint_stores/types defines a single type: the model of its options and, at the
end, `SPEC`. A function that opens a store imports the store's SDK itself. Configurations are pure
and import the types, and only a process that opens a store pays for its SDK (docs/benchmarks.md:
the cold starts).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from control_plane.checkpoint_stores.checkpoint_files import CheckpointFiles
from control_plane.findings import Finding

StorageFields = Mapping[str, str]
"""The `storage` of a trial's specification: `type`, and the values that trials need to open the
store, secrets included. `path` is a folder of the machine, which containers mount.
"""

Options = TypeVar("Options")


@dataclass(frozen=True, slots=True)
class RequiredPackage:
    """A Python package that the server needs to open a store."""

    module: str
    """The module to import, such as `google.cloud.storage`."""
    requirement: str
    """The requirement that pip installs the package with, such as `detcloud[gcs]`."""


@dataclass(frozen=True, slots=True)
class CredentialScope:
    """The part of a bucket for which the cluster issues credentials to trials."""

    bucket: str
    prefix: str = ""
    """The prefix of all keys that the credentials cover; "" for the whole bucket."""


def no_host_paths(options: Any) -> Mapping[str, str]:
    """Return an empty mapping: the default `host_paths`, for stores without paths on machines."""
    return {}


def no_credentials(fields: StorageFields) -> CredentialScope | None:
    """Return None, the default `credential_scope`: trials receive no credentials of the cluster."""
    return None


def no_location(fields: StorageFields) -> Mapping[str, str]:
    """Return an empty mapping: the default `location`, for stores that only the cluster opens."""
    return {}


def no_endpoints(options: Any) -> Mapping[str, str]:
    """Return an empty mapping: the default `endpoints`, for stores whose options name no URL."""
    return {}


def no_problem(options: Any) -> Finding | None:
    """Return None, the default `find_credential_problem`: the cluster never signs requests to the
    store.
    """
    return None


@dataclass(frozen=True, kw_only=True)
class StoreType(Generic[Options]):
    """A type of checkpoint store that configurations may name.

    Trials write to stores of the type. The cluster reads checkpoints and deletes them.
    """

    name: str
    """The name of the type in configurations, and the name of its file."""
    options: type[Options]
    """The model of the type's options: a subclass of CheckpointStorage."""
    storage_fields: Callable[[Options], dict[str, str]]
    """Builds the `storage` of a trial's specification from the options, secrets included."""
    open_files: Callable[[StorageFields], CheckpointFiles]
    """Opens the store. Raises OSError."""
    display_name: Callable[[StorageFields], str]
    """Returns the store's name for users, without secrets. Equal names mean the same store."""
    location: Callable[[StorageFields], Mapping[str, str]] = no_location
    """Returns the part of `storage` that addresses the store, without secrets.

    A user with credentials of his own opens the store by this part and the `type`. Empty if users
    cannot open the store.
    """
    listing_order: int = 100
    """The position in lists of types, in ascending order. Types with equal positions are sorted by
    name.
    """
    required_package: RequiredPackage | None = None
    """The package that the server opens the store with; None if no further package is needed."""
    host_paths: Callable[[Options], Mapping[str, str]] = no_host_paths
    """Returns the paths on the machines of trials that the options name, by the option's name."""
    credential_scope: Callable[[StorageFields], CredentialScope | None] = no_credentials
    """Returns the scope of the credentials that the cluster issues to trials. Returns None if the
    cluster issues no credentials for the store.
    """
    endpoints: Callable[[Options], Mapping[str, str]] = no_endpoints
    """Returns the URLs in the options that the server would call, by the option's name.

    The value for an option with several URLs separates them by semicolons.
    """
    find_credential_problem: Callable[[Options], Finding | None] = no_problem
    """Returns the reason why a cluster must not sign requests to the store with the cluster's own
    credentials. Returns None if the cluster may. Only clusters that issue credentials ask.
    """
