"""The checkpoint store in a container of Azure Blob Storage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detcloud.shared.azure import AzureContainer
from detcloud.shared.azure_place import AzurePlace
from detcloud.storage.bucket_store import BucketStore
from detcloud.storage.store import StorageError, translate_errors


def build_store(config: Mapping[str, Any]) -> BucketStore:
    """Return the store in the container `container` of the configuration.

    The connection uses `connection_string`, or `account_url` and `credential`. With both given, the
    secret is from `connection_string`, and the address from `account_url`. Without `credential`,
    the store uses the identity of the machine or the environment, for accounts of Azure's own
    clouds only. Raises StorageError if the container or the account is missing, or if a field is
    invalid.
    """
    if not config.get("container"):
        raise StorageError(f"storage container is {config.get('container')!r}: a name is needed")
    with translate_errors("using the checkpoint storage"):
        return BucketStore(AzureContainer(AzurePlace.from_storage(config)))
