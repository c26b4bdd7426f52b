"""Credentials for a trial's storage, and the interface of those who issue them."""

from dataclasses import dataclass, field
from typing import Protocol

SECONDS_MAX = 3600


@dataclass(frozen=True, slots=True)
class StorageCredentials:
    """Keys that sign requests, valid until `expires_ms` (epoch)."""

    key_id: str
    secret: str = field(repr=False)
    session_token: str = field(repr=False)
    expires_ms: int


@dataclass(frozen=True, slots=True)
class StorageToken:
    """A token that requests carry, valid until `expires_ms` (epoch). `account`: the service account
    whose token it is.
    """

    access_token: str = field(repr=False)
    expires_ms: int
    account: str = ""


@dataclass(frozen=True, slots=True)
class StorageAccess:
    """The access that credentials give in `bucket`: to write below the folders `writes`, and to
    read below the folders `reads`.
    """

    bucket: str
    writes: tuple[str, ...]
    reads: tuple[str, ...]


class CredentialIssuer(Protocol):
    """Issues credentials of a cloud that are limited to an access."""

    @property
    def store_type(self) -> str:
        """The type of checkpoint stores that its credentials open."""

    def issue_credentials(
        self, name: str, access: StorageAccess
    ) -> StorageCredentials | StorageToken:
        """Issue credentials for a session called `name`; OSError if the cloud does not answer."""
