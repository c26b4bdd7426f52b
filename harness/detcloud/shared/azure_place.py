"""The address of a container of Azure Blob Storage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

# Of Azure's own clouds, where nobody else answers.
_OWN_HOSTS = (
    ".blob.core.windows.net",
    ".blob.core.chinacloudapi.cn",
    ".blob.core.usgovcloudapi.net",
)


@dataclass(frozen=True)
class AzurePlace:
    """A container and the way to it: a connection string, or an account's URL and a credential, an
    account's key or a token of a shared access signature; the environment's identity without it.
    """

    container: str
    connection_string: str | None = field(default=None, repr=False)
    account_url: str | None = None
    credential: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"{self.endpoint or 'no account'}/{self.container}"

    @classmethod
    def from_storage(cls, storage: Mapping[str, Any]) -> AzurePlace:
        """The place that a `storage` object of type azure describes."""
        names = ("connection_string", "account_url", "credential")
        options = {name: str(storage[name]) for name in names if storage.get(name) is not None}
        return cls(str(storage["container"]), **options)

    @property
    def problem(self) -> str:
        """Why no client can be made; "" where one can."""
        if not self.endpoint:
            return "connection_string names no AccountName and no BlobEndpoint"
        if isinstance(self.key, dict) and not all(self.key.values()):
            return (
                "connection_string has neither AccountName and AccountKey nor a"
                " SharedAccessSignature"
            )
        return ""

    @property
    def key(self) -> str | Mapping[str, str] | None:
        """The secret in the form that Azure's client takes, None for the environment's identity.

        A connection string is read here alone, so that no other server is called than the one of
        `endpoint`, which clusters look at.
        """
        if self.connection_string is None:
            return self.credential
        settings = _settings(self.connection_string)
        if signature := settings.get("sharedaccesssignature"):
            return signature
        names = {"account_name": "accountname", "account_key": "accountkey"}
        return {ours: settings.get(name, "") for ours, name in names.items()}

    @property
    def endpoint(self) -> str:
        """The URL of the account, without anything secret; "" where none can be read."""
        url = self.account_url or _connected_url(self.connection_string or "")
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        return f"{parts.scheme}://{host}{parts.path}".rstrip("/") if host else ""


def is_azures_own(url: str) -> bool:
    """Whether the URL is one of Azure's, reached by TLS, and not of a server like it."""
    parts = urlsplit(url)
    return parts.scheme == "https" and (parts.hostname or "").endswith(_OWN_HOSTS)


def _connected_url(connection_string: str) -> str:
    """The URL of the account that a connection string names."""
    settings = _settings(connection_string)
    if given := settings.get("blobendpoint"):
        return given
    account = settings.get("accountname")
    scheme = settings.get("defaultendpointsprotocol", "https")
    suffix = settings.get("endpointsuffix", "core.windows.net")
    return f"{scheme}://{account}.blob.{suffix}" if account else ""


def _settings(connection_string: str) -> dict[str, str]:
    """The settings of a connection string by their names in lowercase letters."""
    pairs = (part.partition("=") for part in connection_string.split(";"))
    return {name.strip().lower(): value.strip() for name, _, value in pairs}
