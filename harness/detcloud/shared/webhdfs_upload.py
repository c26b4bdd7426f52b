"""The upload of a checkpoint's file to HDFS in parts that the cluster receives."""

from __future__ import annotations

from pathlib import Path

from detcloud.shared.file_parts import FilePart, open_source
from detcloud.shared.upload_parts import PartSizes
from detcloud.shared.webhdfs import HdfsFolder


class HdfsPartsUpload:
    """The upload in parts of a file of `size` bytes to a key.

    Parts are sent through the cluster, because HDFS cannot sign requests. Every method that sends a
    request may raise BucketError if HDFS refuses or does not answer after repeats. A damaged joined
    file makes them delete the stored parts and raise PartsConflict.
    """

    is_in_order = False
    whole_bytes_max: int | None = None

    def __init__(self, folder: HdfsFolder, key: str, size: int) -> None:
        self.sizes = PartSizes(size)
        self._parts = folder.parts_of(key, self.sizes)

    def stored_parts(self) -> list[int]:
        """Return the sorted numbers, from 1, of the stored parts. All numbers if the file exists.

        An existing file counts with any size. Parts of a wrong size are left out. Each call asks
        HDFS.
        """
        return self._parts.stored_numbers()

    def sign_part(self, number: int, md5: str, seconds: int) -> None:
        """Return None, because HDFS cannot sign requests. Nothing is sent."""

    def store_part(self, number: int, md5: str, source: str) -> None:
        """Store a part from a file of this machine at the path `source`.

        `md5` is the part's digest in hexadecimal, which is not compared. Do nothing if a part with
        this digest is stored, or if the file exists. Stored parts of the same number with another
        MD5 are deleted. A part of a wrong size is stored but never counts. The number is not
        checked. `source` stays. Raise OSError if `source` cannot be opened, and BucketError if HDFS
        stored other content.
        """
        if self._parts.has(number, md5):
            return
        with open_source(Path(source)) as file:
            self._parts.store(number, FilePart(file, 0, file.size), md5)

    def join(self) -> bool:
        """Create the file from the stored parts, and return True. Delete the stored parts.

        Return False, and delete stored parts as well, if the file exists already with the same size
        and any content, so also for a second call. Raise PartsConflict if a part is missing, or if
        the existing file has another size. Raise JoinRefused if HDFS refuses to join parts. The
        parts then stay.
        """
        return self._parts.join()
