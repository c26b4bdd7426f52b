"""The checkpoint store of an experiment's trials, as their specifications describe it.

It is what the experiment's configuration names or else the cluster's own; from the description,
`storage` in a specification, the cluster too opens it, names it and issues credentials for it.
"""

from control_plane.checkpoint_stores.checkpoint_files import CheckpointFiles
from control_plane.checkpoint_stores.registry import AnyUsableType, find_usable_type
from control_plane.checkpoint_stores.store_type import CredentialScope, StorageFields
from control_plane.config.storage import CheckpointStorage


def storage_fields(options: CheckpointStorage, default: CheckpointStorage) -> dict[str, str] | None:
    """The spec's `storage`, with its secrets; None for a type that this cluster cannot use.
    `default` is the cluster's own store, for configurations that name no type.
    """
    chosen = default if options.type is None else options
    spec = find_usable_type(chosen.type)
    return None if spec is None else spec.storage_fields(chosen)


def display_storage(fields: StorageFields) -> str:
    """The place of a spec's `storage` as users see it, without secrets."""
    return _type_of(fields).display_name(fields)


def open_checkpoint_files(fields: StorageFields) -> CheckpointFiles:
    """Open the store of a spec's `storage`. Raises OSError."""
    return _type_of(fields).open_files(fields)


def credential_scope(fields: StorageFields | None) -> CredentialScope | None:
    """The scope of the credentials that the cluster issues to trials with that `storage`; None
    where they get none.
    """
    return None if fields is None else _type_of(fields).credential_scope(fields)


def _type_of(fields: StorageFields) -> AnyUsableType:
    spec = find_usable_type(fields["type"])
    assert spec is not None
    return spec
