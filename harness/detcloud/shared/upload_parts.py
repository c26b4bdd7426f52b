"""The parts of a large file that a user uploads by requests of the cluster's making."""

from __future__ import annotations

from typing import Protocol

# Of what a user uploads, a part is what a break costs, and what one signed request has to carry.
SIGNED_PART_BYTES = 64 << 20
SIGNED_PARTS_MAX = 10_000

_MIB = 1 << 20


def signed_part_bytes(size: int) -> int:
    """The size of parts that users upload, of which only the last is shorter: of whole MiB, as
    Google's uploads have to be.
    """
    least = max(SIGNED_PART_BYTES, -(-size // SIGNED_PARTS_MAX))
    return -(-least // _MIB) * _MIB


class PartSizes:
    """The parts into which a file of `size` bytes is cut that a user uploads, numbered from 1."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.part_bytes = signed_part_bytes(size)

    @property
    def count(self) -> int:
        """How many parts there are."""
        return -(-self.size // self.part_bytes)

    @property
    def numbers(self) -> range:
        """The numbers of all parts."""
        return range(1, self.count + 1)

    def start_of(self, number: int) -> int:
        """The place of a part's first byte."""
        return (number - 1) * self.part_bytes

    def size_of(self, number: int) -> int:
        """The bytes of a part, of which only the last has fewer than the others."""
        return min(self.part_bytes, self.size - self.start_of(number))


class SessionMemory(Protocol):
    """A memory of the session of one file's upload, for the client that goes on with it."""

    def find(self) -> str | None:
        """The session that is kept."""

    def keep(self, session: str, instead_of: str | None) -> str:
        """Keep a session unless another one was kept meanwhile; the one that is kept then."""

    def forget(self) -> None:
        """Keep none any more."""
