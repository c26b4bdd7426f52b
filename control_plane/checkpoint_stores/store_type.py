"""The specification of a type of checkpoint store: all that the rest of the server knows of it.

A file of control_plane/checkpoint_stores/types holds one type: the model of its options and, at the
end, `SPEC`. What opens a store is imported by the function that does: configurations, which are
pure, import the types, and only who opens a store pays for its SDK (docs/benchmarks.md: the cold
starts).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from control_plane.checkpoint_stores.checkpoint_files import CheckpointFiles
from control_plane.findings import Finding

StorageFields = Mapping[str, str]
"""The `storage` of a trial's specification: `type`, and what its trials need to use the store. A
`path` is a folder of the machine, which containers mount.
"""

Options = TypeVar("Options")


@dataclass(frozen=True, slots=True)
class RequiredPackage:
    """A package that the server needs for a store, and what pip installs it with."""

    module: str
    requirement: str


@dataclass(frozen=True, slots=True)
class CredentialScope:
    """The bucket that the cluster issues credentials for, and the prefix of all keys in it."""

    bucket: str
    prefix: str = ""


def no_host_paths(options: Any) -> Mapping[str, str]:
    """Name no path: such a store is not on the machines of trials."""
    return {}


def no_credentials(fields: StorageFields) -> CredentialScope | None:
    """Issue no credentials: trials have their own, or need none."""
    return None


def no_location(fields: StorageFields) -> Mapping[str, str]:
    """Locate nothing: such a store is reached through the cluster alone."""
    return {}


def no_endpoints(options: Any) -> Mapping[str, str]:
    """Name no endpoint: such a store is where the cluster's own software finds it."""
    return {}


def no_problem(options: Any) -> Finding | None:
    """Find no problem: the cluster's credentials sign nothing for such a store."""
    return None


@dataclass(frozen=True, kw_only=True)
class StoreType(Generic[Options]):
    """A type that configurations may name: trials write to its stores, and the cluster reads them
    and cleans up.
    """

    name: str
    """What configurations call it, and what its file is called."""
    options: type[Options]
    """What configurations say of it: a section of CheckpointStorage."""
    storage_fields: Callable[[Options], dict[str, str]]
    """Makes the `storage` of a trial's specification, with its secrets."""
    open_files: Callable[[StorageFields], CheckpointFiles]
    """Opens the store. Raises OSError."""
    display_name: Callable[[StorageFields], str]
    """The store as users see it, without secrets; two stores with one name are the same."""
    location: Callable[[StorageFields], Mapping[str, str]] = no_location
    """Picks from the `storage` what leads to the store, without secrets: users with credentials of
    their own open it by that and its `type`. Nothing: they do not.
    """
    listing_order: int = 100
    """Where the reference shows it: those with less come first, and equal ones by name."""
    required_package: RequiredPackage | None = None
    """What the server opens it with, None for nothing of others."""
    host_paths: Callable[[Options], Mapping[str, str]] = no_host_paths
    """The paths on the machines of trials that the options name, by the name of the option."""
    credential_scope: Callable[[StorageFields], CredentialScope | None] = no_credentials
    """What the cluster issues credentials for; None for a store whose trials have their own."""
    endpoints: Callable[[Options], Mapping[str, str]] = no_endpoints
    """The URLs that users name for the server to call, by the name of the option; several in one
    option are separated by semicolons.
    """
    find_credential_problem: Callable[[Options], Finding | None] = no_problem
    """Says why no cluster that issues credentials may sign requests to such a store with them."""
