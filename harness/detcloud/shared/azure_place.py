"""The address of a container of Azure Blob Storage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

# The host names of Azure's own clouds, which nobody else controls.
_OWN_HOSTS = (
    ".blob.core.windows.net",
    ".blob.core.chinacloudapi.cn",
    ".blob.core.usgovcloudapi.net",
)


@dataclass(frozen=True)
class AzurePlace:
    """The address of a container with credentials. The text form contains no secrets."""

    container: str
    """The container's name."""
    connection_string: str | None = field(default=None, repr=False)
    """Azure's connection string, in place of the other fields."""
    account_url: str | None = None
    """The URL of the storage account."""
    credential: str | None = field(default=None, repr=False)
    """The account's key or a shared access signature. None for the environment's identity."""

    def __str__(self) -> str:
        return f"{self.endpoint or 'no account'}/{self.container}"

    @classmethod
    def from_storage(cls, storage: Mapping[str, Any]) -> AzurePlace:
        """Return the place that the fields of a configured checkpoint storage describe.

        `container` is the name, and becomes text: null becomes "None", and an empty name stays "".
        Raise KeyError only if the field is absent. `connection_string`, `account_url` and
        `credential` become None if missing or null, and otherwise text. The place is not checked:
        `problem` does that.
        """
        names = ("connection_string", "account_url", "credential")
        options = {name: str(storage[name]) for name in names if storage.get(name) is not None}
        return cls(str(storage["container"]), **options)

    @property
    def problem(self) -> str:
        """The reason, for users, why the place cannot be used. "" without a known reason.

        Only a missing account and missing secrets in the connection string are found. Nothing is
        sent.
        """
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
        """The secret in a form for Azure's client: a text, or account name and key.

        Without a connection string, the result is the field `credential`. None means the
        environment's identity. With a connection string, even an empty one, `credential` is
        ignored, and a shared access signature precedes the account's key. The result otherwise is
        a mapping of `account_name` and `account_key`, where a missing value is "". Azure's client
        never reads the connection string itself, so that only the server of `endpoint` is called,
        which clusters check.
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
        """The URL of the account without secrets. "" if the fields name no URL with a host.

        `account_url` precedes the connection string. Login, query, fragment and final slashes are
        removed. A URL without a scheme, such as `host/path`, counts as no URL.
        """
        url = self.account_url or _connected_url(self.connection_string or "")
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        return f"{parts.scheme}://{host}{parts.path}".rstrip("/") if host else ""


def is_azures_own(url: str) -> bool:
    """Whether the URL is an https URL of Azure's own clouds, and not of a compatible server.

    The host decides, also of the clouds for China and for the US government. An account's custom
    domain does not count. Nothing is requested.
    """
    parts = urlsplit(url)
    return parts.scheme == "https" and (parts.hostname or "").endswith(_OWN_HOSTS)


def _connected_url(connection_string: str) -> str:
    """Return the URL of the account that a connection string names, or "" without an account.

    A BlobEndpoint is returned unchanged. Otherwise the URL is built from the account's name, by
    default with https and core.windows.net.
    """
    settings = _settings(connection_string)
    if given := settings.get("blobendpoint"):
        return given
    account = settings.get("accountname")
    scheme = settings.get("defaultendpointsprotocol", "https")
    suffix = settings.get("endpointsuffix", "core.windows.net")
    return f"{scheme}://{account}.blob.{suffix}" if account else ""


def _settings(connection_string: str) -> dict[str, str]:
    """Return the settings of a connection string by lower-case name.

    Settings are separated by `;`, and a name ends at the first `=`. White space around names and
    values is removed. The last of repeated names counts. A piece without `=` has the value "".
    """
    pairs = (part.partition("=") for part in connection_string.split(";"))
    return {name.strip().lower(): value.strip() for name, _, value in pairs}
