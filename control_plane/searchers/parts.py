"""Where a search keeps what grows with its trials: named pieces of bytes, each written whole."""

from typing import Protocol


class Parts(Protocol):
    """The pieces of one search. A piece that was written reads back as written."""

    def read(self, name: str) -> bytes | None:
        """The piece, or None if there is none."""
        ...

    def write(self, name: str, piece: bytes) -> None:
        """Replaces the piece; up to about 1 KB, which is what a state table bills as one."""
        ...


class PartsUnder:
    """The pieces of `parts` whose names begin with `prefix`, under the rest of their names."""

    def __init__(self, parts: Parts, prefix: str) -> None:
        self._parts = parts
        self._prefix = prefix

    def read(self, name: str) -> bytes | None:
        """See Parts."""
        return self._parts.read(self._prefix + name)

    def write(self, name: str, piece: bytes) -> None:
        """See Parts."""
        self._parts.write(self._prefix + name, piece)


class PartsInMemory:
    """Pieces for a search that nobody keeps."""

    def __init__(self) -> None:
        self.pieces: dict[str, bytes] = {}

    def read(self, name: str) -> bytes | None:
        """See Parts."""
        return self.pieces.get(name)

    def write(self, name: str, piece: bytes) -> None:
        """See Parts."""
        self.pieces[name] = piece


class NoParts:
    """For searches that keep none."""

    def read(self, name: str) -> bytes | None:
        """See Parts."""
        return None

    def write(self, name: str, piece: bytes) -> None:
        """Raises TypeError: such a search has no place for it."""
        raise TypeError(f"this search keeps no parts; it was to write {name}")
