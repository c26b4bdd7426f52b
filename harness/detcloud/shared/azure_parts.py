"""One large file for Azure that comes in parts: blocks of a blob, called by their place and digest.

What of it is there is asked of Azure alone, so that a client that comes back after a crash goes on
with it. A key has to be of one content only.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from detcloud.shared.azure import AzureContainer
from detcloud.shared.bucket_errors import BucketError
from detcloud.shared.upload_parts import PartSizes


class AzurePartsUpload:
    """The upload in parts of a file of `size` bytes to a key. Every method raises BucketError.

    Parts come through the cluster: a signature of Azure's binds no content.
    """

    is_in_order = False
    whole_bytes_max: int | None = None

    def __init__(self, container: AzureContainer, key: str, size: int) -> None:
        self._container = container
        self._key = key
        self.sizes = PartSizes(size)

    def stored_parts(self) -> list[int]:
        """The numbers, from 1, of the parts that are there."""
        return sorted(self._blocks)

    def sign_part(self, number: int, md5: str, seconds: int) -> None:
        """None: nothing is signed."""

    def store_part(self, number: int, md5: str, source: str) -> None:
        """Store the part that lies in a file of this machine."""
        self._container.send_block(self._key, f"{_block_place(number)}-{md5}", Path(source))

    def join(self) -> bool:
        """Make the blob of its parts; False where there is one already, and BucketError if a part
        is missing.
        """
        if self._container.object_size(self._key) is not None:
            return False
        missing = set(self.sizes.numbers) - self._blocks.keys()
        if missing:
            if self._container.object_size(self._key) is not None:
                # Another client was faster.
                return False
            raise BucketError(f"part {min(missing)} of {self._key} is missing")
        names = [self._blocks[number] for number in self.sizes.numbers]
        return self._container.commit_blocks(self._key, names)

    @cached_property
    def _blocks(self) -> dict[int, str]:
        """The name of the block of each part that is there and of the right size, by number."""
        found: dict[int, str] = {}
        numbers = {_block_place(number): number for number in self.sizes.numbers}
        for name, size in self._container.uncommitted_blocks(self._key).items():
            number = numbers.get(name.partition("-")[0])
            if number is not None and size == self.sizes.size_of(number):
                found[number] = name
        return found


def _block_place(number: int) -> str:
    """The beginning of a block's name: as long as those of blocks that the cluster cuts itself, as
    Azure wants it, and none of theirs.
    """
    return f"p{number - 1:04}"
