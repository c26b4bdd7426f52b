"""Operations of stores on the files of HDFS by their paths: write, compare, read, rename and list.

A file is written under a name that nobody asks for, read back and compared, and then renamed, which
HDFS does at once or, where the name is taken, not at all.
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
    """A file or folder as HDFS describes it. `name` is that of a folder's entry, as it is stored;
    `length` is in bytes, and `number` stays the same when a file is renamed, NO_NUMBER from
    gateways that tell none. `is_special`: it is in an encryption zone or has an erasure code.
    """

    name: str
    is_file: bool
    is_folder: bool
    length: int
    number: int
    is_special: bool


class HdfsPaths:
    """Operations on the files and folders of a file system; for many threads at once.

    Every method raises BucketError for what repeats did not mend.
    """

    def __init__(self, client: WebHdfsClient) -> None:
        self.client = client

    def status(self, path: str) -> HdfsStatus | None:
        """The status of a file or folder; None where nothing is there."""
        try:
            answer = self.client.ask("GET", path, "GETFILESTATUS")
        except HdfsError as error:
            if error.kind != NOT_FOUND:
                raise
            return None
        return _parse_status(answer.get("FileStatus"), path)

    def file_size(self, path: str) -> int:
        """The size in bytes of a file. Raises NoSuchKey."""
        status = self.status(path)
        if status is None or not status.is_file:
            raise NoSuchKey(f"there is nothing under {path} in HDFS")
        return status.length

    def entries(self, folder: str) -> list[HdfsStatus]:
        """The status of each entry of a folder; none of a file, or where nothing is there."""
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
        # That of a file is the file itself, without a name. Links lead anywhere.
        return [status for status in parsed if status.name and (status.is_file or status.is_folder)]

    def blocks(self, path: str, start: int, end: int) -> Generator[bytes]:
        """The bytes of a part of a file; where an answer breaks off, the rest is requested."""
        failures = 0
        while start < end:
            problem = "it ends too early"
            with closing(self.client.open(path, start, end - start)) as answer:
                try:
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
        """Write a new file with a random name in a folder and compare it with what was sent; its
        path.
        """
        path = self.client.create(folder, part, block_bytes)
        try:
            self._compare(path, part)
        except BaseException:
            self.discard(path)
            raise
        return path

    def rename(self, path: str, destination: str) -> bool:
        """Give a file another name; False where that is taken."""
        status = self.status(path)
        if status is None:
            raise BucketError(f"{destination} was removed while it was written")
        answer = self.client.ask("PUT", path, "RENAME", destination=destination)
        if answer.get("boolean") is True:
            return True
        # A repeat of a request whose answer was lost finds its own file in its way.
        there = self.status(destination)
        if there is None:
            raise BucketError(f"the folder of {destination} was removed while it was written")
        return there.number == status.number != NO_NUMBER

    def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file or folder; one that is gone already is no error."""
        self.client.ask("DELETE", path, "DELETE", recursive="true" if recursive else "false")

    def discard(self, path: str, *, recursive: bool = False) -> None:
        """Remove what nobody asks for, as well as it can be done now."""
        with suppress(OSError):
            self.remove(path, recursive=recursive)

    def _compare(self, path: str, part: FilePart) -> None:
        """Raise BucketError unless the file at the path is what was sent."""
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


def _parse_status(answered: Any, path: str) -> HdfsStatus:
    """The status in an answer about a path. Raises BucketError for what is none."""
    fields = answered if isinstance(answered, dict) else {}
    name, length, number = (fields.get(word) for word in ("pathSuffix", "length", "fileId"))
    is_status = isinstance(name, str) and fields.get("type") in _TYPES
    if not is_status or type(length) is not int or length < 0:
        raise BucketError(_ODD_ANSWER.format(path=path))
    number = number if type(number) is int else NO_NUMBER
    is_special = bool(fields.get("encBit") or fields.get("ecBit"))
    is_file, is_folder = (fields["type"] == kind for kind in _TYPES[:2])
    return HdfsStatus(str(name), is_file, is_folder, length, number, is_special)
