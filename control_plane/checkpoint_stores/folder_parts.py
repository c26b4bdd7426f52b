"""One large file for a folder that comes in parts, each of which is written to its place.

The file lies among the unfinished writes, where the removal of its checkpoint finds it, with an
empty file for each part that is there: that is made once the part outlasts a loss of power.
"""

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from control_plane.checkpoint_stores.folder_uploads import (
    UploadPlace,
    open_place,
    open_staging,
    publish_file,
)
from detcloud.shared.staged_files import staged_prefix
from detcloud.shared.upload_parts import PartSizes

_WRITTEN_FILE = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCK_BYTES = 1024 * 1024
_NUMBER = re.compile(r"[1-9][0-9]{0,5}")


class FolderPartsUpload:
    """The upload in parts of a file of `size` bytes to ROOT/path. Every method raises OSError."""

    is_in_order = False
    whole_bytes_max: int | None = None

    def __init__(self, root: Path, path: str, size: int) -> None:
        self._root = root
        self._path = path
        self.sizes = PartSizes(size)
        digest = hashlib.sha256(path.encode()).hexdigest()[:32]
        self._prefix = f"{staged_prefix(path)}{digest}."
        self._content = f"{self._prefix}content"

    def stored_parts(self) -> list[int]:
        """The numbers, from 1, of the parts that are there; makes room for the others."""
        with self._open() as (place, staging):
            if _exists(place.name, place.folder):
                return [*self.sizes.numbers]
            if _exists(self._content, staging):
                return sorted(self._part_numbers(staging))
            # Marks of a file that is gone: the removal of old files may have left some.
            for number in self._part_numbers(staging):
                _remove(self._mark(number), staging)
            with suppress(FileExistsError):
                os.close(os.open(self._content, _NEW_FILE, 0o644, dir_fd=staging))
            return []

    def sign_part(self, number: int, md5: str, seconds: int) -> None:
        """None: nothing is signed."""

    def store_part(self, number: int, md5: str, source: str) -> None:
        """Write the part that lies in another file of this machine to its place."""
        with self._open() as (_, staging):
            descriptor = os.open(self._content, _WRITTEN_FILE, dir_fd=staging)
            with Path(source).open("rb") as reader, os.fdopen(descriptor, "wb") as writer:
                writer.seek(self.sizes.start_of(number))
                while block := reader.read(_BLOCK_BYTES):
                    writer.write(block)
                writer.flush()
                os.fsync(writer.fileno())
            with suppress(FileExistsError):
                os.close(os.open(self._mark(number), _NEW_FILE, 0o644, dir_fd=staging))
            os.fsync(staging)

    def join(self) -> bool:
        """Give the file its place; False where there is one already, and OSError if a part is
        missing.
        """
        with self._open() as (place, staging):
            marked = self._part_numbers(staging)
            missing = set(self.sizes.numbers) - marked
            # After the marks: another client that was faster has removed them.
            is_there = _exists(place.name, place.folder)
            if missing and not is_there:
                raise OSError(f"part {min(missing)} of {self._path} is missing")
            published = not is_there and publish_file(staging, self._content, place)
            for name in (self._content, *map(self._mark, marked)):
                _remove(name, staging)
            return published

    @contextmanager
    def _open(self) -> Iterator[tuple[UploadPlace, int]]:
        """The file's place, and the open folder of unfinished writes."""
        with open_place(self._root, self._path) as place, open_staging(place.root) as staging:
            yield place, staging

    def _mark(self, number: int) -> str:
        return f"{self._prefix}{number}"

    def _part_numbers(self, staging: int) -> set[int]:
        """The numbers of the parts that are marked as written."""
        with os.scandir(staging) as found:
            names = [entry.name for entry in found if entry.name.startswith(self._prefix)]
        numbers = (name.removeprefix(self._prefix) for name in names)
        return {int(number) for number in numbers if _NUMBER.fullmatch(number)} & set(
            self.sizes.numbers
        )


def _exists(name: str, folder: int) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _remove(name: str, folder: int) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)
