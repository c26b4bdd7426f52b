"""The checkpoint store of an experiment's trials, as their specifications describe it.

It is what the experiment's configuration names or else the cluster's own; from the description,
`storage` in a specification, the cluster too opens it, names it and issues credentials for it.
"""

from control_plane.checkpoint_stores.checkpoint_files import CheckpointFiles
from control_plane.checkpoint_stores.registry import store_type
from control_plane.checkpoint_stores.store_type import CredentialScope, StorageFields
from control_plane.config.storage import CheckpointStorage


def storage_fields(options: CheckpointStorage, default: CheckpointStorage) -> dict[str, str]:
    """The spec's `storage`, with its secrets. `default` is the cluster's own store, for
    configurations that name no type.
    """
    chosen = default if options.type is None else options
    fields: dict[str, str] = store_type(chosen.type or "").storage_fields(chosen)
    return fields


def display_storage(fields: StorageFields) -> str:
    """The place of a spec's `storage` as users see it, without secrets."""
    return store_type(fields["type"]).display_name(fields)


def storage_location(fields: StorageFields) -> dict[str, str]:
    """The `type` of a spec's `storage` and what of it leads to the store, without secrets; empty
    where the cluster alone reaches it.
    """
    location = store_type(fields["type"]).location(fields)
    return {"type": fields["type"], **location} if location else {}


def open_checkpoint_files(fields: StorageFields) -> CheckpointFiles:
    """Open the store of a spec's `storage`. Raises OSError."""
    return store_type(fields["type"]).open_files(fields)


def credential_scope(fields: StorageFields | None) -> CredentialScope | None:
    """The scope of the credentials that the cluster issues to trials with that `storage`; None
    where they get none.
    """
    return None if fields is None else store_type(fields["type"]).credential_scope(fields)
