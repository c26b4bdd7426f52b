"""A container of Azure Blob Storage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from control_plane.checkpoint_stores.checkpoint_files import CheckpointFiles
from control_plane.checkpoint_stores.store_type import (
    RequiredPackage,
    StorageFields,
    StoreType,
)
from control_plane.config.section import Secret, refuse
from control_plane.config.storage import CheckpointStorage, Url
from control_plane.field_types import Text
from detcloud.shared.azure_place import AzurePlace, is_azures_own


class Azure(CheckpointStorage):
    """Azure Blob Storage, reached by a connection string or by an account's URL. Trials write
    checkpoints, and the cluster deletes checkpoints that are not kept, both with the credentials of
    this section. Both need azure-storage-blob (`pip install 'detcloud[azure]'`), and permission to
    read, write, list and delete.
    """

    type: Literal["azure"]
    container: Text
    """The container."""
    connection_string: Secret | None = None
    """The connection string of the account; instead of account_url."""
    account_url: Url | None = Field(default=None, validate_default=True)
    """The URL of the account, as https://ACCOUNT.blob.core.windows.net; instead of
    connection_string.
    """
    credential: Secret | None = Field(default=None, validate_default=True)
    """The account's key or a token of a shared access signature; for account_url. If absent, the
    identities of the cluster's and the trials' machines or environments are used, for Azure's own
    accounts only.
    """

    @field_validator("account_url", "credential")
    @classmethod
    def _check_alone(cls, value: Any, info: ValidationInfo) -> Any:
        """Return `account_url` or `credential` unchanged.

        Raise PydanticCustomError if the option is set together with `connection_string`, also if
        the connection string is invalid. For `account_url`, also raise PydanticCustomError if
        neither `account_url` nor `connection_string` is set.
        """
        connected = info.data.get("connection_string", "refused") is not None
        if value is not None and connected:
            refuse(
                "must not be used together with connection_string",
                "remove all but one",
                shown=False,
            )
        if value is None and not connected and info.field_name == "account_url":
            refuse("is required unless connection_string is given")
        return value

    @field_validator("account_url")
    @classmethod
    def _check_url(cls, url: str | None) -> str | None:
        """Return the URL unchanged. Raise PydanticCustomError for a URL with a query."""
        if url is not None and "?" in url:
            refuse("must have no '?'", "put the signature into credential", shown=False)
        return url

    @field_validator("credential")
    @classmethod
    def _check_host(cls, value: Any, info: ValidationInfo) -> Any:
        """Return the credential unchanged. Raise PydanticCustomError if the credential is missing
        and the account's URL is not Azure's own.
        """
        # A server other than Azure's would receive the token of the cluster's identity.
        url = info.data.get("account_url")
        if value is None and url is not None and not is_azures_own(url):
            refuse("is required for an account_url that is not Azure's own")
        return value


def _storage_fields(options: Azure) -> dict[str, str]:
    connection_string, credential = options.connection_string, options.credential
    fields = {
        "type": "azure",
        "container": options.container,
        "connection_string": connection_string.reveal() if connection_string else None,
        "account_url": options.account_url,
        "credential": credential.reveal() if credential else None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _open_files(fields: StorageFields) -> CheckpointFiles:
    from control_plane.checkpoint_stores.bucket_files import open_azure_files

    return open_azure_files(fields)


def _display_name(fields: StorageFields) -> str:
    return str(AzurePlace.from_storage(fields))


def _location(fields: StorageFields) -> Mapping[str, str]:
    return {
        "container": fields["container"],
        "account_url": AzurePlace.from_storage(fields).endpoint,
    }


def _endpoints(options: Azure) -> Mapping[str, str]:
    """Return the account's URL by the option that names the account; empty for Azure's own URLs."""
    endpoint = AzurePlace.from_storage(_storage_fields(options)).endpoint
    named = "account_url" if options.account_url else "connection_string"
    return {} if is_azures_own(endpoint) else {named: endpoint}


SPEC = StoreType[Azure](
    name="azure",
    listing_order=50,
    options=Azure,
    storage_fields=_storage_fields,
    open_files=_open_files,
    display_name=_display_name,
    location=_location,
    required_package=RequiredPackage("azure.storage.blob", "detcloud[azure]"),
    endpoints=_endpoints,
)
