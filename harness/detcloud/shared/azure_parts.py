"""The upload of a large file to Azure in parts: blocks with a name of position and digest.

Azure alone knows the stored parts. A client can therefore continue an upload after a crash. All
uploads to a key must have the same content.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from detcloud.shared.azure import AzureContainer
from detcloud.shared.bucket_errors import PartsConflict
from detcloud.shared.upload_parts import PartSizes, check_stored_size


class AzurePartsUpload:
    """The upload in parts of a file of `size` bytes to a key.

    Parts are sent through the cluster, because Azure's signatures cannot be bound to content. A
    part is an uncommitted block, and the blob is created by the join. Every method that sends a
    request may raise the errors of AzureContainer, after the container's repeats. The list of
    stored parts is requested once per instance, at the first need; an error is not cached.
    """

    is_in_order = False
    whole_bytes_max: int | None = None

    def __init__(self, container: AzureContainer, key: str, size: int) -> None:
        self._container = container
        self._key = key
        self.sizes = PartSizes(size)

    def stored_parts(self) -> list[int]:
        """Return the sorted numbers, from 1, of the stored parts that are not joined yet.

        Blocks of a wrong size are left out. Joining drops the parts, so the list is empty if the
        first call follows the join. The first answer is cached: later calls of the object show
        neither new parts nor the join.
        """
        return sorted(self._blocks)

    def sign_part(self, number: int, md5: str, seconds: int) -> None:
        """Return None, because Azure's parts are not signed. Nothing is sent."""

    def store_part(self, number: int, md5: str, source: str) -> None:
        """Store a part from a file of this machine at the path `source`.

        `md5` is the part's digest in hexadecimal. The digest becomes part of the block's name, and
        is not compared with the content. Size and number are not checked either. Replace a block of
        the same number and digest; blocks with another digest stay. The file at `source` stays.
        Raise OSError if the file cannot be read.
        """
        self._container.send_block(self._key, f"{_block_place(number)}-{md5}", Path(source))

    def join(self) -> bool:
        """Create the blob from the stored parts, and return True.

        Return False if the blob exists with the file's size and any content, or is created by
        another client meanwhile with any size. A second call therefore returns False. Raise
        PartsConflict if a part is missing, or if the existing blob has another size. Parts that
        were stored after the first list of parts count as missing. After an error, the parts stay.
        A result of False deletes no parts.
        """
        if self._is_stored():
            return False
        missing = set(self.sizes.numbers) - self._blocks.keys()
        if missing:
            if self._is_stored():
                # Another client was faster.
                return False
            raise PartsConflict(f"part {min(missing)} of {self._key} is missing")
        names = [self._blocks[number] for number in self.sizes.numbers]
        return self._container.commit_blocks(self._key, names)

    def _is_stored(self) -> bool:
        """Request whether the blob exists. Raise PartsConflict if the blob has another size."""
        stored = self._container.object_size(self._key)
        if stored is not None:
            check_stored_size(self._key, stored, self.sizes.size)
        return stored is not None

    @cached_property
    def _blocks(self) -> dict[int, str]:
        """The names of the stored blocks by part number. Blocks of a wrong size are skipped.

        The list is requested at the first access and cached. Names of other forms are skipped. Of
        several blocks of a part, the last in the store's order counts.
        """
        found: dict[int, str] = {}
        numbers = {_block_place(number): number for number in self.sizes.numbers}
        for name, size in self._container.uncommitted_blocks(self._key).items():
            number = numbers.get(name.partition("-")[0])
            if number is not None and size == self.sizes.size_of(number):
                found[number] = name
        return found


def _block_place(number: int) -> str:
    """Return the beginning of the name of a part's block: `p0000` for the part 1.

    All block names of a blob must have the same length. The beginning differs from the names of
    blocks that the cluster cuts itself.
    """
    return f"p{number - 1:04}"
