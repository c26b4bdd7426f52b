"""The checkpoint store of an experiment's trials, as the trials' specifications describe the store.

An experiment uses the store in its configuration, or else the cluster's own store. The description
is `storage` in a specification. The cluster uses the same description to open the store, to display
its name and to issue credentials for it.
"""

from control_plane.checkpoint_stores.checkpoint_files import CheckpointFiles
from control_plane.checkpoint_stores.registry import store_type
from control_plane.checkpoint_stores.store_type import CredentialScope, StorageFields
from control_plane.config.storage import CheckpointStorage


def storage_fields(options: CheckpointStorage, default: CheckpointStorage) -> dict[str, str]:
    """Return the `storage` of a specification, secrets included.

    `options` are those of the experiment. If they have no type, use `default`, the cluster's own
    store. Raises KeyError for an unknown type.
    """
    chosen = default if options.type is None else options
    fields: dict[str, str] = store_type(chosen.type or "").storage_fields(chosen)
    return fields


def display_storage(fields: StorageFields) -> str:
    """Return a store's name for users, without secrets. Raises KeyError for an unknown type."""
    return store_type(fields["type"]).display_name(fields)


def storage_location(fields: StorageFields) -> dict[str, str]:
    """Return the `type` and the address of a store, without secrets.

    Return an empty dict if users can reach the store only through the cluster. Raises KeyError for
    an unknown type.
    """
    location = store_type(fields["type"]).location(fields)
    return {"type": fields["type"], **location} if location else {}


def open_checkpoint_files(fields: StorageFields) -> CheckpointFiles:
    """Open the store that the fields `storage` of a trial's specification describe.

    Raises OSError if the store's package is missing or the store cannot be used. Raises KeyError
    for an unknown type.
    """
    return store_type(fields["type"]).open_files(fields)


def credential_scope(fields: StorageFields | None) -> CredentialScope | None:
    """Return the scope of the credentials that the cluster issues to trials with this `storage`.

    Return None if `fields` is None or the trials receive no credentials. Raises KeyError for an
    unknown type.
    """
    return None if fields is None else store_type(fields["type"]).credential_scope(fields)
