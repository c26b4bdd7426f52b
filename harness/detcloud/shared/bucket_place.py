"""The address of a bucket of Amazon S3, or of an S3-compatible store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class BucketPlace:
    """A bucket's address and credentials. Its text form, for messages, contains no secrets."""

    name: str
    prefix: str = ""
    """The beginning of all keys."""
    endpoint_url: str | None = None
    """The store's URL; a login in the URL is removed. None for Amazon S3."""
    region: str | None = None
    """The bucket's region. None for the environment's region."""
    access_key: str | None = field(default=None, repr=False)
    """The access key. None for the environment's credentials."""
    secret_key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.endpoint_url is not None:
            object.__setattr__(self, "endpoint_url", without_login(self.endpoint_url))

    def __str__(self) -> str:
        whole = "/".join(filter(None, ("s3:/", self.name, self.prefix.strip("/"))))
        return f"{whole} at {self.endpoint_url}" if self.endpoint_url else whole

    @property
    def key_prefix(self) -> str:
        """The beginning of all keys without outer slashes, then a slash. "" without a prefix."""
        prefix = self.prefix.strip("/")
        return f"{prefix}/" if prefix else ""

    @classmethod
    def from_storage(cls, storage: Mapping[str, Any]) -> BucketPlace:
        """Return the place that the fields of a configured checkpoint storage describe.

        `bucket` is the name, and becomes text: null becomes "None", and an empty name stays "".
        Raise KeyError only if the field is absent. `prefix`, `endpoint_url`, `access_key` and
        `secret_key` get their defaults if missing or null, and otherwise become text. Other fields
        are ignored, so the result has no region. A login in the URL is removed. Nothing is checked.
        """
        names = ("prefix", "endpoint_url", "access_key", "secret_key")
        options = {name: str(storage[name]) for name in names if storage.get(name) is not None}
        return cls(str(storage["bucket"]), **options)


def without_login(url: str) -> str:
    """Return a URL without the user and password in front of the host.

    The rest stays unchanged, as does a URL without login or a text without `://`.
    """
    scheme, separator, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{separator}{host.rpartition('@')[2]}{slash}{path}"
