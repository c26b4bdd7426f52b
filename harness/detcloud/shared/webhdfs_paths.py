"""Operations of stores on the files of HDFS by their paths: write, compare, read, rename and list.

A file is written under a name that nobody asks for, read back and compared, and then renamed, which
HDFS does at once or, where the name is taken, not at all.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from contextlib import closing, suppress
from http.client import HTTPException
from typing import Any

from detcloud.shared.bucket_errors import BucketError, NoSuchKey
from detcloud.shared.file_parts import FilePart
from detcloud.shared.http import backoff_seconds
from detcloud.shared.webhdfs_client import ATTEMPTS_MAX, HdfsError, WebHdfsClient

NOT_FOUND = "FileNotFoundException"
_BLOCK_BYTES = 1 << 20


class HdfsPaths:
    """Operations on the files and folders of a file system; for many threads at once.

    Every method raises BucketError for what repeats did not mend.
    """

    def __init__(self, client: WebHdfsClient) -> None:
        self.client = client

    def status(self, path: str) -> Mapping[str, Any] | None:
        """The status of a file or folder as HDFS answers it; None where nothing is there."""
        try:
            answer = self.client.ask("GET", path, "GETFILESTATUS")
        except HdfsError as error:
            if error.kind != NOT_FOUND:
                raise
            return None
        status: Mapping[str, Any] = answer["FileStatus"]
        return status

    def file_size(self, path: str) -> int:
        """The size in bytes of a file. Raises NoSuchKey."""
        status = self.status(path)
        if status is None or status["type"] != "FILE":
            raise NoSuchKey(f"there is nothing under {path} in HDFS")
        return int(status["length"])

    def entries(self, folder: str) -> list[tuple[str, Mapping[str, Any]]]:
        """The stored name and the status of each entry of a folder; none of a file, or where
        nothing is there.
        """
        try:
            answer = self.client.ask("GET", folder, "LISTSTATUS")
        except HdfsError as error:
            if error.kind != NOT_FOUND:
                raise
            return []
        found = [(it["pathSuffix"], it) for it in answer["FileStatuses"]["FileStatus"]]
        # That of a file is the file itself, without a name.
        return [(name, status) for name, status in found if name]

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
        return bool(there["fileId"] == status["fileId"])

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
