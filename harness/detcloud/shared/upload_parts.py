"""The parts of a large file that a user uploads by requests that the cluster prepares."""

from __future__ import annotations

from typing import Protocol

from detcloud.shared.bucket_errors import PartsConflict

# A broken connection costs a part, and each signed request carries a part.
SIGNED_PART_BYTES = 64 << 20
SIGNED_PARTS_MAX = 10_000

_MIB = 1 << 20


def signed_part_bytes(size: int) -> int:
    """Return the part size in bytes for a file of `size` bytes. Only the last part may be smaller.

    The part size is a multiple of 1 MiB, as Google requires, at least SIGNED_PART_BYTES, and large
    enough for at most SIGNED_PARTS_MAX parts.
    """
    least = max(SIGNED_PART_BYTES, -(-size // SIGNED_PARTS_MAX))
    return -(-least // _MIB) * _MIB


class PartSizes:
    """The parts of a file of `size` bytes for a user's upload, numbered from 1."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.part_bytes = signed_part_bytes(size)

    @property
    def count(self) -> int:
        """The number of parts. 0 for an empty file."""
        return -(-self.size // self.part_bytes)

    @property
    def numbers(self) -> range:
        """The numbers of all parts, from 1. Empty for an empty file."""
        return range(1, self.count + 1)

    def start_of(self, number: int) -> int:
        """Return the offset of a part's first byte in the file. The number is not checked."""
        return (number - 1) * self.part_bytes

    def size_of(self, number: int) -> int:
        """Return the number of bytes of a part. Only the last part may be smaller.

        The number is not checked: numbers outside `numbers` give wrong sizes.
        """
        return min(self.part_bytes, self.size - self.start_of(number))


def check_stored_size(name: str, stored: int, size: int) -> None:
    """Raise PartsConflict unless the stored size equals the size of the upload, in bytes.

    `name` is the file's name in the message.
    """
    if stored != size:
        text = f"{name} is stored with {stored} bytes, and this upload has {size}"
        raise PartsConflict(f"{text}: name the size that was offered, or another path")


class SessionMemory(Protocol):
    """A memory of the session of a file's upload, with which a client can continue the upload.

    A session is the URL to which parts are sent. Errors are those of the memory.
    """

    def find(self) -> str | None:
        """Return the stored session, open or ended. Return None if no session is stored.

        The store of the file is not asked.
        """

    def keep(self, session: str, instead_of: str | None) -> str:
        """Store a session if the stored session still equals `instead_of`.

        With `instead_of` None, store the session only if none is stored. Return the session that is
        stored afterwards, which may be another client's.
        """

    def forget(self) -> None:
        """Delete the stored session. Do nothing without a stored session."""
