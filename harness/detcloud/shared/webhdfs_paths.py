"""Operations of stores on HDFS files by path: write, compare, read, rename and list.

A file is written under a hidden name, read back and compared, and then renamed. HDFS renames a file
atomically, and not at all if the new name is taken.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import closing, suppress
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any

from detcloud.shared.bucket_errors import BucketError, NoSuchKey
from detcloud.shared.file_parts import FilePart
from detcloud.shared.http import backoff_seconds
from detcloud.shared.webhdfs_client import ATTEMPTS_MAX, HdfsError, WebHdfsClient

NOT_FOUND = "FileNotFoundException"
NO_NUMBER = -1
_TYPES = ("FILE", "DIRECTORY", "SYMLINK")
_BLOCK_BYTES = 1 << 20
_ODD_ANSWER = "{path}: unexpected answer, which is none of HDFS; check the addresses in hdfs_url"


@dataclass(frozen=True, slots=True)
class HdfsStatus:
    """HDFS's description of a file or folder."""

    name: str
    """The stored name, in the list of a folder's entries. "" in the status of a path."""
    is_file: bool
    is_folder: bool
    length: int
    """The file's size in bytes."""
    number: int
    """HDFS's number of the file, which a rename keeps. NO_NUMBER if a gateway names none."""
    is_special: bool
    """Whether the file is in an encryption zone or has erasure coding."""


class HdfsPaths:
    """Operations on the files and folders of a file system. Thread-safe.

    Every method except `discard` may raise HdfsError if HDFS refuses, and another BucketError if
    HDFS does not answer after the repeats of WebHdfsClient, or answers with a malformed status.
    Paths are absolute.
    """

    def __init__(self, client: WebHdfsClient) -> None:
        self.client = client

    def status(self, path: str) -> HdfsStatus | None:
        """Return the status of a file or folder. Return None if the path does not exist."""
        try:
            answer = self.client.ask("GET", path, "GETFILESTATUS")
        except HdfsError as error:
            if error.kind != NOT_FOUND:
                raise
            return None
        return _parse_status(answer.get("FileStatus"), path)

    def file_size(self, path: str) -> int:
        """Return the size of a file in bytes. Raise NoSuchKey without a file at the path."""
        status = self.status(path)
        if status is None or not status.is_file:
            raise NoSuchKey(f"there is nothing under {path} in HDFS")
        return status.length

    def entries(self, folder: str) -> list[HdfsStatus]:
        """Return the status of each file and folder in a folder, not deeper. Links are skipped.

        The entries are in HDFS's order. Return an empty list if the path is a file or does not
        exist. The whole list is requested by this call.
        """
        try:
            answer = self.client.ask("GET", folder, "LISTSTATUS")
        except HdfsError as error:
            if error.kind != NOT_FOUND:
                raise
            return []
        listed = answer.get("FileStatuses")
        found = listed.get("FileStatus") if isinstance(listed, dict) else None
        if not isinstance(found, list):
            raise BucketError(_ODD_ANSWER.format(path=folder))
        parsed = (_parse_status(one, folder) for one in found)
        # The list of a file is the file itself without a name. Links may lead anywhere.
        return [status for status in parsed if status.name and (status.is_file or status.is_folder)]

    def blocks(self, path: str, start: int, end: int, size: int | None = None) -> Generator[bytes]:
        """Yield the bytes of a file from the offset `start` to before `end`.

        The first request is sent with the first block. Nothing is requested if `start` is not
        before `end`. `size` is the size of the whole file, by default `end`. If an answer breaks
        off or ends too early, request the rest, with pauses. Raise BucketError after ATTEMPTS_MAX
        failures in total, and HdfsError without the file.
        """
        size = end if size is None else size
        failures = 0
        while start < end:
            problem = "it ends too early"
            with closing(self.client.open(path, start, end - start)) as answer:
                skipped = _bytes_before(path, start, end, size, answer.length)
                try:
                    while skipped and (block := answer.read(min(_BLOCK_BYTES, skipped))):
                        skipped -= len(block)
                    while start < end and (block := answer.read(min(_BLOCK_BYTES, end - start))):
                        start += len(block)
                        yield block
                except (ConnectionError, TimeoutError, HTTPException) as error:
                    problem = f"{error}"
            if start < end:
                failures += 1
                if failures >= ATTEMPTS_MAX:
                    raise BucketError(f"{path} cannot be read: {problem}")
                time.sleep(backoff_seconds(failures))

    def write(self, folder: str, part: FilePart, block_bytes: int | None = None) -> str:
        """Write a part to a new file with a random name in a folder, and return the file's path.

        Missing folders are created. Read the file back. If the content differs or cannot be read,
        delete the file if possible, and raise BucketError. Failed datanodes are replaced as
        `WebHdfsClient.create` does, but other content is not sent again. `block_bytes` is the size
        of HDFS's blocks, by default HDFS's own. The part's position changes.
        """
        path = self.client.create(folder, part, block_bytes)
        try:
            self._compare(path, part)
        except BaseException:
            self.discard(path)
            raise
        return path

    def rename(self, path: str, destination: str) -> bool:
        """Rename a file. Return whether the file now has the new path.

        Return False, and change nothing, if another file has the new path. After a lost answer, the
        file at the new path counts as this file if its number is equal. Without numbers, the result
        is then False. Raise BucketError if the file or the folder of the new path does not exist,
        also for a second call after a success.
        """
        status = self.status(path)
        if status is None:
            raise BucketError(f"{destination} was removed while it was written")
        answer = self.client.ask("PUT", path, "RENAME", destination=destination)
        if answer.get("boolean") is True:
            return True
        # After a lost answer, the repeated request finds its own file at the new path.
        there = self.status(destination)
        if there is None:
            raise BucketError(f"the folder of {destination} was removed while it was written")
        return there.number == status.number != NO_NUMBER

    def remove(self, path: str, *, recursive: bool = False) -> None:
        """Delete a file or folder. Do nothing if the path does not exist.

        Without `recursive`, raise HdfsError of the kind PathIsNotEmptyDirectoryException for a
        folder with entries.
        """
        self.client.ask("DELETE", path, "DELETE", recursive="true" if recursive else "false")

    def discard(self, path: str, *, recursive: bool = False) -> None:
        """Delete an unneeded file or folder as `remove` does, ignoring all errors of HDFS.

        Requests are repeated like others. Without `recursive`, a folder with entries stays.
        """
        with suppress(OSError):
            self.remove(path, recursive=recursive)

    def _compare(self, path: str, part: FilePart) -> None:
        """Read the file at the path back. Raise BucketError unless it has the content of `part`.

        Reading ends at the first difference, and a file of another size is not read. Broken answers
        are continued as in `blocks`. Raise NoSuchKey without the file. The part's position changes.
        """
        is_same = self.file_size(path) == len(part)
        sent, rest = part.blocks(), memoryview(b"")
        with closing(self.blocks(path, 0, len(part) if is_same else 0)) as stored:
            for read in stored:
                block = memoryview(read)
                while is_same and block:
                    rest = rest or next(sent)
                    count = min(len(block), len(rest))
                    is_same = block[:count] == rest[:count]
                    block, rest = block[count:], rest[count:]
                if not is_same:
                    break
        if not is_same:
            raise BucketError(f"{path} differs from what was sent: HDFS stored something else")


def _bytes_before(path: str, start: int, end: int, size: int, length: int | None) -> int:
    """Return the number of bytes to skip at the beginning of an answer of `length` bytes.

    The request was for the bytes from `start` to before `end` of a file of `size` bytes. A gateway
    that ignores the offset sends the whole file: the result is then `start`. A gateway that ignores
    the length sends the rest of the file, and the result is 0. The result is 0 as well if `start`
    is 0, or if the answer has no `length` or is not longer than requested. Raise BucketError for
    any other length.
    """
    if not start or length is None or length <= end - start:
        return 0
    if length not in (size, size - start):
        raise BucketError(_ODD_ANSWER.format(path=path))
    return start if length == size else 0


def _parse_status(answered: Any, path: str) -> HdfsStatus:
    """Parse a status in an answer about a path.

    Raise BucketError for a malformed status. A missing or malformed number of the file becomes
    NO_NUMBER, and missing properties of a special file count as false.
    """
    fields = answered if isinstance(answered, dict) else {}
    name, length, number = (fields.get(word) for word in ("pathSuffix", "length", "fileId"))
    is_status = isinstance(name, str) and fields.get("type") in _TYPES
    if not is_status or type(length) is not int or length < 0:
        raise BucketError(_ODD_ANSWER.format(path=path))
    number = number if type(number) is int else NO_NUMBER
    is_special = bool(fields.get("encBit") or fields.get("ecBit"))
    is_file, is_folder = (fields["type"] == kind for kind in _TYPES[:2])
    return HdfsStatus(str(name), is_file, is_folder, length, number, is_special)
