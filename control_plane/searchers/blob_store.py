"""Named blobs: small byte strings for the part of a search's state that grows with the trials.

In a cluster, blobs are parts of the experiment's actor; see docs/decisions/0006.
"""

from typing import Protocol


class BlobStore(Protocol):
    """The blobs of one search. A read returns the latest written bytes."""

    def read(self, name: str) -> bytes | None:
        """Return the blob `name`. None if no such blob was written."""
        ...

    def write(self, name: str, blob: bytes) -> None:
        """Create or replace the blob `name`.

        A blob has at most about 1 KB, which a state table bills as one write.
        """
        ...


class PrefixedBlobStore:
    """A view of another store: the blob `name` is stored there as `prefix` + `name`."""

    def __init__(self, blobs: BlobStore, prefix: str) -> None:
        self._blobs = blobs
        self._prefix = prefix

    def read(self, name: str) -> bytes | None:
        """Return the blob `name`, or None; see BlobStore."""
        return self._blobs.read(self._prefix + name)

    def write(self, name: str, blob: bytes) -> None:
        """Create or replace the blob `name`; see BlobStore."""
        self._blobs.write(self._prefix + name, blob)


class MemoryBlobStore:
    """A blob store in memory, for a search that is not stored."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}

    def read(self, name: str) -> bytes | None:
        """Return the blob `name`, or None; see BlobStore."""
        return self.contents.get(name)

    def write(self, name: str, blob: bytes) -> None:
        """Create or replace the blob `name`; see BlobStore."""
        self.contents[name] = blob


class NoBlobStore:
    """An empty blob store that accepts no writes, for a search without blobs."""

    def read(self, name: str) -> bytes | None:
        """Return None."""
        return None

    def write(self, name: str, blob: bytes) -> None:
        """Raise TypeError, because the search has no place for blobs."""
        raise TypeError(f"this search has no blob store, but writes the blob {name}")
