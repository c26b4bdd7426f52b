"""The address of a bucket of Amazon S3, or of a store that speaks its protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class BucketPlace:
    """A bucket's address and the way to it. Keys lie below `prefix`; credentials that are not given
    here are those of the environment. A login in `endpoint_url`, which nobody would use, is left
    out: addresses of files, errors and logs are made of it.
    """

    name: str
    prefix: str = ""
    endpoint_url: str | None = None
    region: str | None = None
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.endpoint_url is not None:
            object.__setattr__(self, "endpoint_url", without_login(self.endpoint_url))

    def __str__(self) -> str:
        whole = "/".join(filter(None, ("s3:/", self.name, self.prefix.strip("/"))))
        return f"{whole} at {self.endpoint_url}" if self.endpoint_url else whole

    @classmethod
    def from_storage(cls, storage: Mapping[str, Any]) -> BucketPlace:
        """The place that a `storage` object of type s3 describes."""
        names = ("prefix", "endpoint_url", "access_key", "secret_key")
        options = {name: str(storage[name]) for name in names if storage.get(name) is not None}
        return cls(str(storage["bucket"]), **options)


def without_login(url: str) -> str:
    """The URL without what stands before the @ of its host."""
    scheme, separator, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{separator}{host.rpartition('@')[2]}{slash}{path}"
