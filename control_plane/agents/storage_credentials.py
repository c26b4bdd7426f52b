"""Credentials for a trial's storage, and the protocol of credential issuers."""

from dataclasses import dataclass, field
from typing import Protocol

SECONDS_MAX = 3600
"""The longest validity of issued credentials."""


@dataclass(frozen=True, slots=True)
class StorageCredentials:
    """Keys that sign requests to a bucket."""

    key_id: str
    secret: str = field(repr=False)
    session_token: str = field(repr=False)
    expires_ms: int
    """The end of the keys' validity (epoch ms)."""


@dataclass(frozen=True, slots=True)
class StorageToken:
    """A bearer token for requests to a bucket."""

    access_token: str = field(repr=False)
    expires_ms: int
    """The end of the token's validity (epoch ms)."""
    account: str = ""
    """The service account that the token belongs to, or ""."""


@dataclass(frozen=True, slots=True)
class StorageAccess:
    """The access to a bucket that credentials give."""

    bucket: str
    writes: tuple[str, ...]
    """Folders below which the holder may write."""
    reads: tuple[str, ...]
    """Folders below which the holder may read."""


class CredentialIssuer(Protocol):
    """An issuer of a cloud's credentials, which are limited to a `StorageAccess`."""

    @property
    def store_type(self) -> str:
        """The type of checkpoint store that the credentials open, for example `s3`."""

    def issue_credentials(
        self, name: str, access: StorageAccess
    ) -> StorageCredentials | StorageToken:
        """Issue credentials that allow `access` only.

        Args:
            name: the name of the session, which the cloud shows in its audit logs.

        Raises:
            OSError: the cloud does not answer.
        """
