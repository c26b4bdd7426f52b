"""A folder of HDFS, with the methods of `detcloud.shared.s3.Bucket` that stores need.

Unfinished files have hidden names in the folder of the finished file.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

from detcloud.shared.bucket_errors import BucketError
from detcloud.shared.bucket_place import without_login
from detcloud.shared.file_parts import FilePart, SourceFile, open_source
from detcloud.shared.transfers import PARTS_AT_ONCE, Digest, call_at_once, fetch_parts
from detcloud.shared.upload_parts import PartSizes
from detcloud.shared.webhdfs_client import STAGED, HdfsError, WebHdfsClient
from detcloud.shared.webhdfs_limits import HDFS_LIMITS, HdfsLimits
from detcloud.shared.webhdfs_parts import HdfsParts, JoinRefused
from detcloud.shared.webhdfs_paths import HdfsPaths, HdfsStatus

_PLAIN = re.compile(r"[A-Za-z0-9._-]+")
_ESCAPED = re.compile(rb"~([0-9A-F]{2})")


class HdfsFolder:
    """The files below a folder of HDFS. A key is the path below the folder. Thread-safe.

    Requests that no node answers, and requests to busy nodes, are repeated up to ATTEMPTS_MAX
    attempts with growing pauses, on all namenodes and other datanodes. Then every method that sends
    a request raises StoreBusy or another BucketError. If HDFS refuses a request, it raises the
    BucketError HdfsError at once. A key with an empty part, `.` or `..` raises BucketError. Only
    methods that say so raise NoSuchKey. Errors of local files are passed on as OSError.
    """

    def __init__(
        self, url: str, root: str, user: str | None = None, *, limits: HdfsLimits = HDFS_LIMITS
    ) -> None:
        """Create a client. Nothing is sent yet.

        `url` contains the namenodes' URLs, separated by semicolons; logins in the URLs are removed.
        `root` is the folder, `user` the user of the requests, or None. Raise BucketError if `url`
        names no namenode.
        """
        namenodes = [without_login(part.strip()) for part in url.split(";") if part.strip()]
        if not namenodes:
            raise BucketError(f"hdfs_url is {url!r:.200}: a URL like http://host:port was expected")
        self.paths = HdfsPaths(WebHdfsClient(namenodes, user))
        self._root = "/" + root.strip("/")
        self._limits = limits
        self.place = hdfs_place(url, root)

    @classmethod
    def from_storage(
        cls, storage: Mapping[str, Any], *, limits: HdfsLimits = HDFS_LIMITS
    ) -> HdfsFolder:
        """Return the folder that the fields of a configured checkpoint storage describe.

        The fields are `hdfs_url`, `hdfs_path` and `user`, which become text; other fields are
        ignored. Without `hdfs_path`, the folder is the root of HDFS. Without `user`, HDFS chooses
        the user. An empty or null field counts as missing. Raise BucketError if `hdfs_url` is
        missing. Nothing is sent yet.
        """
        url, root = str(storage.get("hdfs_url") or ""), str(storage.get("hdfs_path") or "")
        user = str(storage["user"]) if storage.get("user") else None
        return cls(url, root, user, limits=limits)

    def send(self, key: str, source: Path) -> bool:
        """Upload a file as a new file, completely or not at all. Compare the stored content.

        Return True if this call created the file. Return False, and change nothing, if the key
        exists, also as a folder or with equal content. Return False as well if another writer
        creates the key meanwhile; a large file must then have the same size, else PartsConflict is
        raised. Missing folders are created, and stay after an error. Large files are sent in parts,
        several at a time. If HDFS refuses to join parts, send this file and later files as a whole.

        Raise BucketError if the stored content differs, or if `source` is no regular file or
        becomes shorter. Raise OSError if `source` cannot be opened. After an error, unfinished
        files are deleted if possible.
        """
        path = self._path(key)
        if self.paths.status(path) is not None:
            return False
        with open_source(source) as file:
            sizes = PartSizes(file.size)
            if sizes.count > 1 and self.can_join:
                try:
                    return self._send_parts(path, file, sizes)
                except JoinRefused:
                    self.can_join = False
            return self._send_whole(path, FilePart(file, 0, file.size))

    def fetch(self, key: str, destination: Path, digest: Digest | None = None) -> None:
        """Copy a file to a local file, several parts at a time. Replace an existing file.

        Answers that break off are continued as in `open`. Raise NoSuchKey if the key does not exist
        or is a folder; the local file then stays. After an error of the transfer, the local file is
        incomplete, and the old content is lost. Update `digest` with the content.
        """
        path = self._path(key)
        size = self.paths.file_size(path)
        part_bytes = self._limits.fetched_part_bytes
        read = partial(self.paths.blocks, path, size=size)
        fetch_parts(destination, size, part_bytes, read, digest)

    def open(self, key: str) -> tuple[int, Iterator[bytes]]:
        """Open a file, and return its size in bytes and an iterator of blocks.

        The first block is read by this call, the others during the iteration, which works once. An
        empty file gives a single empty block. Raise NoSuchKey if the key does not exist or is a
        folder. If an answer breaks off, the iterator requests the rest, with pauses. The iterator
        raises BucketError after ATTEMPTS_MAX failures, and HdfsError if the file is deleted
        meanwhile.
        """
        path = self._path(key)
        size = self.paths.file_size(path)
        blocks = self.paths.blocks(path, 0, size)
        first = next(blocks, b"")
        return size, chain((first,), blocks)

    def object_size(self, key: str) -> int | None:
        """Return the file's size in bytes. Return None if the key does not exist or is a folder.

        Each call sends a request.
        """
        status = self.paths.status(self._path(key))
        return status.length if status is not None and status.is_file else None

    def list_objects(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Yield the key and the size in bytes of each file below a folder, at any depth.

        `prefix` is the folder, with or without a final slash; "" is the root. Each folder is listed
        when the iteration reaches it, which raises the errors. Unlike in a bucket, the prefix must
        not end within a name. The files are in HDFS's order. Links and unfinished uploads are
        skipped. Yield nothing if the folder does not exist or is a file.
        """
        folder = prefix.rstrip("/")
        for entry in self._entries(folder):
            name = _to_name(entry.name)
            key = f"{folder}/{name}" if folder else name
            if entry.is_file:
                yield key, entry.length
            else:
                yield from self.list_objects(f"{key}/")

    def list_folders(self, folder: str) -> list[str]:
        """Return the sorted names of the folders in a folder, without deeper folders.

        The folder "" is the root. Links and unfinished uploads are skipped. Empty if the folder is
        missing or is a file.
        """
        return sorted(_to_name(entry.name) for entry in self._entries(folder) if not entry.is_file)

    def delete(self, key: str) -> None:
        """Delete a file, and then each parent folder below the root that is empty.

        A missing file is no error, and empty parent folders are deleted as well. An empty folder
        under the key is deleted like a file. Raise HdfsError, and delete nothing, if the key is a
        folder with entries.
        """
        self.paths.remove(self._path(key))
        self.remove_empty_folders(key.rpartition("/")[0])

    def remove_folder(self, folder: str) -> None:
        """Delete a folder with all content, or a file. Do nothing if the path does not exist.

        Parent folders stay, even if empty. The root, with the key "", is refused with a BucketError
        like any key with an empty part.
        """
        self.paths.remove(self._path(folder), recursive=True)

    def remove_empty_folders(self, folder: str) -> None:
        """Delete a folder and its parent folders, up to the first folder that is not empty.

        The root stays. A missing folder is no error, and its parent folders are deleted. Do nothing
        for the root, with the key "". The key of a file deletes the file.
        """
        while folder:
            try:
                self.paths.remove(self._path(folder))
            except HdfsError as error:
                if error.kind != "PathIsNotEmptyDirectoryException":
                    raise
                return
            folder = folder.rpartition("/")[0]

    def parts_of(self, key: str, sizes: PartSizes) -> HdfsParts:
        """Return the parts of the future file of a key. Later processes find the same parts.

        Equal keys have the same folder of parts beside the file, for any `sizes`. Nothing is sent
        yet.
        """
        path = self._path(key)
        digest = hashlib.sha256(path.encode()).hexdigest()[:32]
        folder = f"{_folder_of(path)}/{STAGED}{digest}"
        return HdfsParts(self.paths, folder, path, sizes, self._limits.names_bytes_max)

    @cached_property
    def can_join(self) -> bool:
        """Whether HDFS can join files in the root of this object. The answer is requested once.

        An error is not cached. The nearest existing parent folder stands for a missing root. False
        also after HDFS has refused to join parts for `send`.

        HDFS joins no files in an encryption zone or with erasure coding. A comma in the folder's
        path makes joining impossible, because commas separate the names in the request.
        """
        folder = self._root
        while (status := self.paths.status(folder or "/")) is None and folder:
            folder = folder.rpartition("/")[0]
        return "," not in self._root and not (status is not None and status.is_special)

    def _send_whole(self, path: str, content: FilePart) -> bool:
        staged = self.paths.write(_folder_of(path), content)
        try:
            if self.paths.rename(staged, path):
                return True
        except BaseException:
            self.paths.discard(staged)
            raise
        self.paths.remove(staged)
        return False

    def _send_parts(self, path: str, source: SourceFile, sizes: PartSizes) -> bool:
        folder = f"{_folder_of(path)}/{STAGED}{secrets.token_hex(16)}"
        parts = HdfsParts(self.paths, folder, path, sizes, self._limits.names_bytes_max)
        numbered = zip(sizes.numbers, source.parts(sizes.part_bytes), strict=True)
        try:
            call_at_once(lambda item: parts.store(*item), numbered, PARTS_AT_ONCE)
            return parts.join()
        except BaseException:
            self.paths.discard(folder, recursive=True)
            raise

    def _entries(self, folder: str) -> list[HdfsStatus]:
        """Return the entries of a folder without unfinished uploads. Empty without the folder.

        `folder` is the key of the folder, "" for the root. The list of a file is empty, too. Names
        in the result are HDFS's, still escaped. Links are skipped.
        """
        found = self.paths.entries(self._path(folder) if folder else self._root)
        return [entry for entry in found if not entry.name.startswith(STAGED)]

    def _path(self, key: str) -> str:
        """Return the path of a key in HDFS. Raise BucketError for an invalid key, such as "".

        Characters other than ASCII letters, digits, `.`, `_` and `-` become `~XX` for each byte in
        UTF-8, as does the first character of a name that begins like an unfinished file, with
        STAGED.
        """
        parts = key.split("/")
        if any(part in ("", ".", "..") for part in parts):
            raise BucketError(f"{key!r:.200} is not a valid name of a stored file")
        return "/".join((self._root.rstrip("/"), *map(_from_part, parts)))


def hdfs_place(url: str, root: str) -> str:
    """Return the folder's address for users, without logins in the URLs.

    An example is `hdfs://checkpoints at http://host:9870`.
    """
    namenodes = ";".join(without_login(part.strip()) for part in url.split(";") if part.strip())
    return f"hdfs:/{'/' + root.strip('/')} at {namenodes}"


def _folder_of(path: str) -> str:
    return path.rpartition("/")[0]


def _from_part(part: str) -> str:
    if part.startswith(STAGED):
        return f"~{ord(part[0]):02X}{_from_part(part[1:])}"
    # HDFS does not allow colons, and its datanodes misread escaped characters of URLs.
    if _PLAIN.fullmatch(part):
        return part
    letters = (chr(byte) for byte in part.encode())
    return "".join(
        letter if _PLAIN.fullmatch(letter) else f"~{ord(letter):02X}" for letter in letters
    )


def _to_name(stored: str) -> str:
    if "~" not in stored:
        return stored
    as_bytes = _ESCAPED.sub(lambda found: bytes.fromhex(found[1].decode()), stored.encode())
    return as_bytes.decode(errors="replace")
