"""The working directory of a trial, seen from the user's machine through a tunnel.

The other end is hostile: names, sizes and contents are checked, and nothing that it sends exceeds a
limit in memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import select
import socket
from collections.abc import Iterable, Iterator
from typing import Any

from detcloud.shared.archive_limits import FILES_MAX, NAMES_BYTES_MAX, ArchiveInvalid
from detcloud.shared.archive_names import check_name
from detcloud.shared.folder_sync.folder import FileEntry, FileRefused, FolderContent
from detcloud.shared.folder_sync.frames import FolderLinkBroken, receive_frame, send_frame
from detcloud.shared.folder_sync.synced_names import SyncedNames

REASON_CHARACTERS_MAX = 200
_DIGEST = re.compile(r"[0-9a-f]{64}")


class TrialFolder:
    """The user's end of the service `folder`. Only one thread may use the object."""

    def __init__(self, connection: socket.socket, *, file_bytes_max: int) -> None:
        """Create the object without sending a request.

        Args:
            connection: a stream to the service.
            file_bytes_max: the most bytes of a file. Larger files are left out.
        """
        self._connection = connection
        self._file_bytes_max = file_bytes_max

    def wait_for_change(self, seconds: float, wake: socket.socket | None = None) -> bool:
        """Wait for a notice of a change, and return whether a notice arrived.

        The wait ends after a time, and when `wake` is readable.

        Raises:
            FolderLinkBroken: the stream has ended.
        """
        sources = [self._connection] if wake is None else [self._connection, wake]
        readable, _, _ = select.select(sources, [], [], seconds)
        if self._connection not in readable:
            return False
        fields, _ = receive_frame(self._connection)
        if "changed" not in fields:
            raise FolderLinkBroken("the other end sent an answer without a request")
        return True

    def locate(self) -> str:
        """Return the absolute path of the folder on the machine.

        Raises:
            FolderLinkBroken: the stream has ended, or the machine sent no plain absolute path.
        """
        self._request({"do": "locate"})
        path = ""
        for fields, _ in self._answers():
            path = str(fields.get("path"))
        try:
            check_name(path.removeprefix("/"))
        except ArchiveInvalid:
            path = ""
        if not path.startswith("/"):
            raise FolderLinkBroken("the other end sent no path of its folder")
        return path

    def scan(self, names: SyncedNames) -> FolderContent:
        """Return the content of the folder, without the paths that `names` excludes.

        Raises:
            FileRefused: the machine cannot list the folder, or the folder has too many files.
            FolderLinkBroken: the stream has ended, or an entry is invalid.
        """
        content, count, names_bytes = FolderContent(), 0, 0
        request = {"do": "list", "file_bytes_max": self._file_bytes_max, "rules": names.groups}
        self._request(request)
        for fields, _ in self._answers():
            entries = fields.get("entries")
            if not isinstance(entries, list):
                raise FolderLinkBroken("the other end sent an invalid listing")
            for entry in entries:
                count += 1
                names_bytes += self._add_entry(entry, content, names)
                if count > 2 * FILES_MAX or names_bytes > 2 * NAMES_BYTES_MAX:
                    raise FolderLinkBroken("the other end sent too many files")
        return content

    def fetch(self, name: str, entry: FileEntry) -> Iterator[bytes]:
        """Yield the first bytes of a file, up to the size in the entry. The caller must read up to
        the end. The content may differ from the entry, if the file has changed since.

        Raises:
            FileRefused: the machine refused, for example because the file was deleted.
            FolderLinkBroken: the stream has ended, or the machine sent too many bytes.
        """
        count = 0
        self._request({"do": "get", "name": name, "size": entry.size})
        for _, content in self._answers():
            count += len(content)
            if count > entry.size:
                raise FolderLinkBroken(f"the other end sent more than the size of {name}")
            yield content

    def send(
        self, name: str, blocks: Iterable[bytes], *, replaced: str | None, is_executable: bool
    ) -> str:
        """Create or replace a file of the trial, and return the SHA-256 of the new content.

        Args:
            name: the path of the file.
            blocks: the new content.
            replaced: the SHA-256 of the file that may be replaced. None for a new file.
            is_executable: whether a new file is executable.

        Raises:
            FileRefused: the machine refused, or `blocks` raised FileRefused. The file of the trial
                is unchanged.
            OSError: `blocks` raised OSError. The file of the trial is unchanged.
            FolderLinkBroken: the stream has ended.
        """
        request = {"do": "put", "name": name, "replaced": replaced}
        self._request({**request, "is_executable": is_executable})
        sha = hashlib.sha256()
        try:
            for block in blocks:
                sha.update(block)
                send_frame(self._connection, {"part": True}, block)
        except (FileRefused, ArchiveInvalid, OSError):
            # Without a digest, the service refuses the incomplete content.
            send_frame(self._connection, {"end": True})
            with contextlib.suppress(FileRefused):
                self._finish_request()
            raise
        send_frame(self._connection, {"end": True, "digest": sha.hexdigest()})
        self._finish_request()
        return sha.hexdigest()

    def delete(self, name: str, digest: str) -> None:
        """Delete a file of the trial that has the content of `digest`.

        Raises:
            FileRefused: the machine refused, for example because the file has changed.
            FolderLinkBroken: the stream has ended.
        """
        self._request({"do": "delete", "name": name, "digest": digest})
        self._finish_request()

    def _request(self, fields: dict[str, Any]) -> None:
        send_frame(self._connection, fields)

    def _answers(self) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Yield the frames of an answer, except for the last frame.

        Raise FileRefused if the last frame is an error. Notices of changes are skipped.
        """
        while True:
            fields, content = receive_frame(self._connection)
            if "done" in fields:
                return
            if "error" in fields:
                raise FileRefused(str(fields["error"])[:REASON_CHARACTERS_MAX])
            if "changed" not in fields:
                yield fields, content

    def _finish_request(self) -> None:
        """Read an answer up to the end. Raise FileRefused if the machine refused."""
        for _ in self._answers():
            pass

    def _add_entry(self, entry: object, content: FolderContent, names: SyncedNames) -> int:
        """Add an entry of a listing, and return the bytes of the name.

        Raise FolderLinkBroken for an invalid entry.
        """
        match entry:
            case [str(name), str(digest), int(size), bool(is_executable)]:
                if not _DIGEST.fullmatch(digest) or size < 0:
                    raise FolderLinkBroken("the other end sent an invalid file")
                reason = "" if size <= self._file_bytes_max else "is too large"
            case [str(name), str(reason)]:
                reason = reason[:REASON_CHARACTERS_MAX] or "cannot be read"
                digest, size, is_executable = "", 0, False
            case _:
                raise FolderLinkBroken("the other end sent an invalid listing")
        names_bytes = len(name.encode("utf-8", "surrogatepass"))
        try:
            check_name(name)
        except ArchiveInvalid as error:
            # Such a name cannot exist here, so the path is only reported.
            content.unknown[name] = error.reason
            return names_bytes
        if not names.allows_file(name):
            return names_bytes
        if reason:
            content.unknown[name] = reason
        else:
            content.files[name] = FileEntry(digest, size, is_executable)
        return names_bytes
