"""A folder of HDFS, with the methods of `detcloud.shared.s3.Bucket` that stores need.

A file is written under a name that nobody asks for, in the folder of its key, read back and
compared, and then renamed, which HDFS does at once or, where the name is taken, not at all.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from functools import partial
from http.client import HTTPException
from itertools import chain
from pathlib import Path
from typing import Any

from detcloud.shared.bucket_errors import BucketError, NoSuchKey
from detcloud.shared.bucket_place import without_login
from detcloud.shared.http import backoff_seconds
from detcloud.shared.transfers import fetch_parts
from detcloud.shared.webhdfs_client import ATTEMPTS_MAX, HdfsError, WebHdfsClient

# Files on their way; the dot of a key's part that begins so is escaped.
STAGED = ".put-"
# Nothing of a part is in memory, and each takes two connections.
PART_BYTES = 64 << 20
_BLOCK_BYTES = 1 << 20
_PLAIN = re.compile(r"[A-Za-z0-9._-]+")
_ESCAPED = re.compile(rb"~([0-9A-F]{2})")


class HdfsFolder:
    """Requests on the files below a folder of HDFS; may be used by many threads at once.

    Every method raises BucketError for what repeats did not mend.
    """

    def __init__(self, url: str, root: str, user: str | None = None) -> None:
        """`url` has the namenodes, separated by semicolons."""
        namenodes = [without_login(part.strip()) for part in url.split(";") if part.strip()]
        if not namenodes:
            raise BucketError(f"hdfs_url is {url!r:.200}: a URL like http://host:port was expected")
        self._client = WebHdfsClient(namenodes, user)
        self._root = "/" + root.strip("/")
        self.place = hdfs_place(url, root)

    @classmethod
    def from_storage(cls, storage: Mapping[str, Any]) -> HdfsFolder:
        """The folder that a `storage` object of type hdfs describes. Raises BucketError."""
        url, root = str(storage.get("hdfs_url") or ""), str(storage.get("hdfs_path") or "")
        return cls(url, root, str(storage["user"]) if storage.get("user") else None)

    def send(self, key: str, source: Path) -> bool:
        """Write a file's content under a key, whole or not at all; False where there is one."""
        path = self._path(key)
        if self._status(path) is not None:
            return False
        staged = f"{path.rpartition('/')[0]}/{STAGED}{secrets.token_hex(16)}"
        try:
            self._client.create(staged, source)
            self._compare(staged, source)
            return self._rename(staged, path)
        except BaseException:
            with suppress(OSError):
                self._client.ask("DELETE", staged, "DELETE", recursive="false")
            raise

    def fetch(self, key: str, destination: Path) -> None:
        """Copy a file, several parts at a time. Raises NoSuchKey."""
        path = self._path(key)
        size = self._file_size(path)
        fetch_parts(destination, size, PART_BYTES, partial(self._blocks, path))

    def open(self, key: str) -> tuple[int, Iterator[bytes]]:
        """Open a file: its size in bytes, and its bytes in blocks. Raises NoSuchKey."""
        path = self._path(key)
        size = self._file_size(path)
        blocks = self._blocks(path, 0, size)
        first = next(blocks, b"")
        return size, chain((first,), blocks)

    def object_size(self, key: str) -> int | None:
        """The file's size in bytes; None where there is none."""
        status = self._status(self._path(key))
        return int(status["length"]) if status and status["type"] == "FILE" else None

    def list_objects(self, prefix: str) -> Iterator[tuple[str, int]]:
        """The keys below a folder, which `prefix` names with a slash behind it, and their sizes."""
        folder = prefix.rstrip("/")
        for name, status in self._entries(folder):
            key = f"{folder}/{name}" if folder else name
            if status["type"] == "DIRECTORY":
                yield from self.list_objects(f"{key}/")
            else:
                yield key, int(status["length"])

    def list_folders(self, folder: str) -> list[str]:
        """The sorted names of the folders in a folder; none where it is not there."""
        found = self._entries(folder)
        return sorted(name for name, status in found if status["type"] == "DIRECTORY")

    def delete(self, key: str) -> None:
        """Remove a file and the folders above it that are left empty; one that is gone already is
        no error.
        """
        self._client.ask("DELETE", self._path(key), "DELETE", recursive="false")
        self.remove_empty_folders(key.rpartition("/")[0])

    def remove_folder(self, folder: str) -> None:
        """Remove a folder with all it holds; one that is gone already is no error."""
        self._client.ask("DELETE", self._path(folder), "DELETE", recursive="true")

    def remove_empty_folders(self, folder: str) -> None:
        """Remove a folder and the folders above it if they are empty."""
        while folder:
            try:
                self._client.ask("DELETE", self._path(folder), "DELETE", recursive="false")
            except HdfsError as error:
                if error.kind != "PathIsNotEmptyDirectoryException":
                    raise
                return
            folder = folder.rpartition("/")[0]

    def _rename(self, staged: str, path: str) -> bool:
        status = self._status(staged)
        if status is None:
            raise BucketError(f"{path} was removed while it was written")
        answer = self._client.ask("PUT", staged, "RENAME", destination=path)
        if answer.get("boolean") is True:
            return True
        # A repeat of a request whose answer was lost finds its own file in its way.
        there = self._status(path)
        if there is None:
            raise BucketError(f"the folder of {path} was removed while it was written")
        if there["fileId"] == status["fileId"]:
            return True
        self._client.ask("DELETE", staged, "DELETE", recursive="false")
        return False

    def _compare(self, path: str, source: Path) -> None:
        """Raise BucketError unless the file at the path is the source."""
        size = source.stat().st_size
        is_same = self._file_size(path) == size
        with source.open("rb") as file:
            for block in self._blocks(path, 0, size if is_same else 0):
                is_same = is_same and file.read(len(block)) == block
        if not is_same:
            raise BucketError(f"{path} differs from what was sent: HDFS stored something else")

    def _blocks(self, path: str, start: int, end: int) -> Iterator[bytes]:
        """The bytes of a part of a file; where an answer breaks off, the rest is requested."""
        failures = 0
        while start < end:
            problem = "it ends too early"
            with closing(self._client.open(path, start, end - start)) as answer:
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

    def _entries(self, folder: str) -> list[tuple[str, Mapping[str, Any]]]:
        """The names and types of a folder's entries, without unfinished uploads."""
        try:
            answer = self._client.ask("GET", self._path(folder), "LISTSTATUS")
        except HdfsError as error:
            if error.kind != "FileNotFoundException":
                raise
            return []
        found = [(it["pathSuffix"], it) for it in answer["FileStatuses"]["FileStatus"]]
        # That of a file is the file itself, without a name.
        return [(_to_name(it), what) for it, what in found if it and not it.startswith(STAGED)]

    def _status(self, path: str) -> Mapping[str, Any] | None:
        try:
            answer = self._client.ask("GET", path, "GETFILESTATUS")
        except HdfsError as error:
            if error.kind != "FileNotFoundException":
                raise
            return None
        status: Mapping[str, Any] = answer["FileStatus"]
        return status

    def _file_size(self, path: str) -> int:
        status = self._status(path)
        if status is None or status["type"] != "FILE":
            raise NoSuchKey(f"there is nothing under {path} in HDFS")
        return int(status["length"])

    def _path(self, key: str) -> str:
        parts = key.split("/") if key else []
        if any(part in ("", ".", "..") for part in parts):
            raise BucketError(f"{key!r:.200} is not a valid name of a stored file")
        return "/".join((self._root.rstrip("/"), *map(_from_part, parts))) or "/"


def hdfs_place(url: str, root: str) -> str:
    """The folder in words for users, without a login."""
    namenodes = ";".join(without_login(part.strip()) for part in url.split(";") if part.strip())
    return f"hdfs:/{'/' + root.strip('/')} at {namenodes}"


def _from_part(part: str) -> str:
    if part.startswith(STAGED):
        return f"~{ord(part[0]):02X}{_from_part(part[1:])}"
    # HDFS knows no colons, and its datanodes misread what has to be escaped in a URL.
    if _PLAIN.fullmatch(part):
        return part
    letters = (chr(byte) for byte in part.encode())
    return "".join(it if _PLAIN.fullmatch(it) else f"~{ord(it):02X}" for it in letters)


def _to_name(stored: str) -> str:
    if "~" not in stored:
        return stored
    as_bytes = _ESCAPED.sub(lambda found: bytes.fromhex(found[1].decode()), stored.encode())
    return as_bytes.decode(errors="replace")
