"""Named blobs: small pieces of bytes in which a search keeps what grows with its trials.

In a cluster they are parts of the experiment's actor; see docs/decisions/0006.
"""

from typing import Protocol


class BlobStore(Protocol):
    """The blobs of one search. A blob that was written reads back as written."""

    def read(self, name: str) -> bytes | None:
        """Return the blob of that name, None if there is none."""
        ...

    def write(self, name: str, blob: bytes) -> None:
        """Replace the blob; it has up to about 1 KB, which a state table bills as one write."""
        ...


class PrefixedBlobStore:
    """The blobs of a store whose names begin with `prefix`, under the rest of their names."""

    def __init__(self, blobs: BlobStore, prefix: str) -> None:
        self._blobs = blobs
        self._prefix = prefix

    def read(self, name: str) -> bytes | None:
        """Read the blob from the store; see BlobStore."""
        return self._blobs.read(self._prefix + name)

    def write(self, name: str, blob: bytes) -> None:
        """Write the blob to the store; see BlobStore."""
        self._blobs.write(self._prefix + name, blob)


class MemoryBlobStore:
    """The blobs of a search that is not stored."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}

    def read(self, name: str) -> bytes | None:
        """Return the blob of that name; see BlobStore."""
        return self.contents.get(name)

    def write(self, name: str, blob: bytes) -> None:
        """Replace the blob; see BlobStore."""
        self.contents[name] = blob


class NoBlobStore:
    """The store of a search that has no blobs."""

    def read(self, name: str) -> bytes | None:
        """Return None: there is no blob."""
        return None

    def write(self, name: str, blob: bytes) -> None:
        """Raise TypeError: such a search has no place for a blob."""
        raise TypeError(f"this search keeps no blobs, but writes {name}")
