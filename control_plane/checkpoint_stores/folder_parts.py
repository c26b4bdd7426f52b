"""The upload in parts of a large file to a folder; each part is written at its offset.

The unfinished file is in the staging folder, where the removal of the checkpoint finds it. Beside
it, an empty file, the mark, is created for each part once the part survives a loss of power.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from control_plane.checkpoint_stores.folder_uploads import (
    UploadPlace,
    open_place,
    open_staging,
    publish_file,
)
from detcloud.shared.bucket_errors import PartsConflict
from detcloud.shared.staged_files import staged_prefix
from detcloud.shared.upload_parts import PartSizes, check_stored_size

# The largest file in bytes that `join` reads again, because a request has only seconds. The MD5 of
# each part was compared already, and readers compare the SHA-256 in the manifest.
CHECKED_BYTES_MAX = 4 << 30

_READ_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITTEN_FILE = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCK_BYTES = 1024 * 1024
_MD5 = partial(hashlib.md5, usedforsecurity=False)
_NUMBER = re.compile(r"[1-9][0-9]{0,5}")


class FolderPartsUpload:
    """The PartsUpload of a file to a folder of this machine. Every method raises OSError.

    Every method but `sign_part` creates the root, the missing folders of the path and the staging
    folder.
    """

    is_in_order = False
    whole_bytes_max: int | None = None

    def __init__(
        self,
        root: Path,
        path: str,
        size: int,
        md5: str = "",
        *,
        new_md5: Callable[[], Any] = _MD5,
    ) -> None:
        """Describe the upload of a file of `size` bytes to ROOT/path; write nothing yet.

        `md5` is the MD5 of the whole file in hexadecimal, which `join` compares. "" for no check.
        `new_md5` begins the computation of a file's MD5.
        """
        self._root = root
        self._path = path
        self._md5 = md5
        self._new_md5 = new_md5
        self.sizes = PartSizes(size)
        digest = hashlib.sha256(path.encode()).hexdigest()[:32]
        self._prefix = f"{staged_prefix(path)}{digest}."
        self._content = f"{self._prefix}content"

    def stored_parts(self) -> list[int]:
        """Return the sorted numbers, from 1, of the stored parts, and begin the upload if needed.

        Return all numbers if the path has a file already, of any size. To begin the upload, create
        the staged file with the full size, sparse. Delete a staged file of another size first, and
        the marks of parts that an earlier upload left.
        """
        with self._open() as (place, staging):
            if _size_of(place.name, place.folder) is not None:
                return [*self.sizes.numbers]
            begun = _size_of(self._content, staging)
            if begun == self.sizes.size:
                return sorted(self._part_numbers(staging))
            if begun is not None:
                # An earlier client announced another size for this path; nobody can resume its
                # upload now.
                _remove(self._content, staging)
            # The removal of old staged files may have deleted the content but not all marks.
            for number in self._part_numbers(staging):
                _remove(self._mark(number), staging)
            with suppress(FileExistsError):
                descriptor = os.open(self._content, _NEW_FILE, 0o644, dir_fd=staging)
                try:
                    # `join` compares this size with the announced size. The file is sparse.
                    os.truncate(descriptor, self.sizes.size)
                finally:
                    os.close(descriptor)
            return []

    def sign_part(self, number: int, md5: str, seconds: int) -> None:
        """Return None, because a folder signs no URLs: parts are sent to the API."""

    def store_part(self, number: int, md5: str, source: str) -> None:
        """Write the content of the local file `source` at the part's offset, durably, and mark the
        part as stored.

        `md5` and the length of `source` are not checked. If the staged file is missing because the
        whole file is published, do nothing. Raises PartsConflict if `stored_parts` did not begin
        the upload, or if the published file has another size.
        """
        with self._open() as (place, staging):
            try:
                descriptor = os.open(self._content, _WRITTEN_FILE, dir_fd=staging)
            except FileNotFoundError:
                if self._is_stored(place):
                    return
                text = f"{self._path} was not offered: ask for its parts before they are sent"
                raise PartsConflict(text) from None
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
        """Publish the staged file at ROOT/path, and delete the staged file and the marks.

        Return True if this call published the file. If the path has a file of this size already,
        return False, also if parts are missing. Raises PartsConflict if a part of an unpublished
        file is missing or was deleted meanwhile, if the staged or published file has another size,
        or if the whole file has another MD5 than announced. Files larger than CHECKED_BYTES_MAX
        are published without a comparison of the MD5.
        """
        with self._open() as (place, staging):
            marked = self._part_numbers(staging)
            missing = set(self.sizes.numbers) - marked
            # Read after the marks: a faster client publishes the file before it removes the marks.
            is_there = self._is_stored(place)
            if missing and not is_there:
                raise PartsConflict(f"part {min(missing)} of {self._path} is missing")
            if not is_there:
                self._check_content(staging)
            published = not is_there and self._publish(staging, place)
            for name in (self._content, *map(self._mark, marked)):
                _remove(name, staging)
            return published

    def _publish(self, staging: int, place: UploadPlace) -> bool:
        """Publish the staged file; return False if another client published the file meanwhile.

        Raises PartsConflict if the staged file is missing, or if the published file has another
        size.
        """
        try:
            return publish_file(staging, self._content, place)
        except FileNotFoundError:
            if self._is_stored(place):
                return False
            # The checkpoint was deleted between the look at the parts and the publication.
            text = f"the parts of {self._path} were deleted: send them again"
            raise PartsConflict(text) from None

    def _is_stored(self, place: UploadPlace) -> bool:
        """Return whether `place` has a file. Raises PartsConflict if that file has another size."""
        stored = _size_of(place.name, place.folder)
        if stored is not None:
            check_stored_size(self._path, stored, self.sizes.size)
        return stored is not None

    def _check_content(self, staging: int) -> None:
        """Raise PartsConflict unless the staged file has the announced size and MD5.

        Do nothing if the staged file is missing. The MD5 is compared only if it was announced and
        the file has at most CHECKED_BYTES_MAX bytes.
        """
        try:
            descriptor = os.open(self._content, _READ_FILE, dir_fd=staging)
        except FileNotFoundError:
            # A faster client has published the file.
            return
        with os.fdopen(descriptor, "rb") as reader:
            stored = os.fstat(descriptor).st_size
            check_stored_size(self._path, stored, self.sizes.size)
            if self._md5 and stored <= CHECKED_BYTES_MAX:
                found = hashlib.file_digest(reader, self._new_md5).hexdigest()
                if found != self._md5:
                    text = f"the parts of {self._path} have MD5 {found}, and not {self._md5}"
                    raise PartsConflict(f"{text}: send the file again under another path")

    @contextmanager
    def _open(self) -> Iterator[tuple[UploadPlace, int]]:
        """Yield the place of the file and the descriptor of the staging folder, both created if
        missing and closed at the end.
        """
        with open_place(self._root, self._path) as place, open_staging(place.root) as staging:
            yield place, staging

    def _mark(self, number: int) -> str:
        return f"{self._prefix}{number}"

    def _part_numbers(self, staging: int) -> set[int]:
        """Return the numbers of the parts that have a mark in the staging folder."""
        with os.scandir(staging) as found:
            names = [entry.name for entry in found if entry.name.startswith(self._prefix)]
        numbers = (name.removeprefix(self._prefix) for name in names)
        return {int(number) for number in numbers if _NUMBER.fullmatch(number)} & set(
            self.sizes.numbers
        )


def _size_of(name: str, folder: int) -> int | None:
    """Return the size in bytes of an entry of an open folder, or None for a missing entry."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_size
    except FileNotFoundError:
        return None


def _remove(name: str, folder: int) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)
