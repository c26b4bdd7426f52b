"""The service `folder` of an allocation, `python -m detcloud.launch.folder_server`.

The service lists, reads, replaces and deletes files of the trial's working directory. The user's
end of a tunnel sends the requests (`detcloud.client.trial_folder`). The module runs as the trial's
user, so that it can do no more than a terminal of the trial.
"""

from __future__ import annotations

import contextlib
import hashlib
import select
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from detcloud.launch.spawned_connection import take_connection
from detcloud.shared.archive_limits import ArchiveInvalid
from detcloud.shared.folder_sync.folder import (
    FileRefused,
    FolderContent,
    FolderReplaced,
    SyncedFolder,
)
from detcloud.shared.folder_sync.frames import FolderLinkBroken, receive_frame, send_frame
from detcloud.shared.folder_sync.synced_names import SyncedNames, parse_groups

WATCH_SECONDS = 1.0
"""The least interval between looks for changes while no request arrives."""
IDLE_SHARE = 10
"""The least interval between looks, as a multiple of the time of a look. So a large folder uses at
most a tenth of a core.
"""
ENTRIES_PER_FRAME = 150
"""The entries of a frame. As JSON, a long name may have 5 KB (`FIELDS_BYTES_MAX`)."""


def main() -> int:
    """Serve a connection until the end, and return 0."""
    with take_connection() as connection:
        return FolderServer(connection, Path.cwd()).serve()


class FolderServer:
    """The answers to the requests of a connection."""

    def __init__(self, connection: socket.socket, root: Path) -> None:
        self._connection = connection
        self._root = root
        self._folder = SyncedFolder(root, file_bytes_max=0)
        # The last listing that was sent, and whether the user's end knows of a change.
        self._listed: FolderContent | None = None
        self._has_notified = False
        self._look_seconds = 0.0

    def serve(self) -> int:
        """Answer requests until the connection ends, and return 0.

        While no request arrives, send a notice of a change, once for each listing. So an unused
        folder causes no bytes, and the shell counts as idle.
        """
        try:
            while True:
                seconds = max(WATCH_SECONDS, IDLE_SHARE * self._look_seconds)
                readable, _, _ = select.select([self._connection], [], [], seconds)
                if readable:
                    self._answer(receive_frame(self._connection)[0])
                elif self._listed is not None and not self._has_notified and self._has_changed():
                    send_frame(self._connection, {"changed": True})
                    self._has_notified = True
        except FolderLinkBroken:
            return 0

    def _has_changed(self) -> bool:
        try:
            return self._scan() != self._listed
        except (FileRefused, FolderReplaced, OSError):
            return True

    def _scan(self) -> FolderContent:
        begun = time.monotonic()
        try:
            return self._folder.scan()
        finally:
            self._look_seconds = time.monotonic() - begun

    def _answer(self, request: dict[str, Any]) -> None:
        """Answer a request. Failures of files are answers, too.

        Raises FolderLinkBroken if the connection ends or a request is invalid.
        """
        try:
            self._carry_out(request)
        except ArchiveInvalid as error:
            send_frame(self._connection, {"error": error.reason})
        except (FileRefused, FolderReplaced, ValueError) as error:
            send_frame(self._connection, {"error": str(error)})
        except OSError as error:
            send_frame(self._connection, {"error": error.strerror or str(error)})
        else:
            send_frame(self._connection, {"done": True})

    def _carry_out(self, request: dict[str, Any]) -> None:
        """Carry out a request, and send all frames of the answer but the last."""
        match request:
            case {"do": "list", "file_bytes_max": int(size), "rules": rules}:
                self._list(size, parse_groups(rules))
            case {"do": "get", "name": str(name), "size": int(size)}:
                for block in self._folder.read(name, size):
                    send_frame(self._connection, {"part": True}, block)
            case {"do": "put", "name": str(name)}:
                self._put(name, request)
            case {"do": "locate"}:
                send_frame(self._connection, {"path": str(self._root)})
            case {"do": "delete", "name": str(name), "digest": str(digest)}:
                self._folder.delete(name, digest)
            case _:
                raise FolderLinkBroken("the user's end sent an unknown request")

    def _list(self, file_bytes_max: int, names: SyncedNames) -> None:
        """Send the files and the reasons of left-out paths in several frames.

        Excluded files are not read, because they may be a large data set.
        """
        self._folder.file_bytes_max, self._folder.is_synced = file_bytes_max, names
        self._listed, self._has_notified = self._scan(), False
        entries = _entries_of(self._listed)
        for start in range(0, len(entries), ENTRIES_PER_FRAME):
            part = entries[start : start + ENTRIES_PER_FRAME]
            send_frame(self._connection, {"entries": part})

    def _put(self, name: str, request: dict[str, Any]) -> None:
        """Write a file from the following frames. Read all frames also after a failure."""
        blocks = self._receive_blocks()
        replaced = request.get("replaced")
        try:
            self._folder.write(
                name,
                blocks,
                replaced=None if replaced is None else str(replaced),
                is_executable=request.get("is_executable") is True,
            )
        except (FileRefused, ArchiveInvalid, OSError):
            with contextlib.suppress(FileRefused):
                for _ in blocks:
                    pass
            raise

    def _receive_blocks(self) -> Iterator[bytes]:
        """Yield the content of a file, up to the frame that ends the content.

        Raise FileRefused if the user's end could not send the whole content.
        """
        sha = hashlib.sha256()
        while True:
            fields, content = receive_frame(self._connection)
            if "part" not in fields:
                if fields.get("digest") != sha.hexdigest():
                    raise FileRefused("the content is incomplete")
                return
            sha.update(content)
            yield content


def _entries_of(content: FolderContent) -> list[list[Any]]:
    """Return a list for each file, and a list with path and reason for each left-out path."""
    files = sorted(content.files.items())
    return [
        *([name, one.digest, one.size, one.is_executable] for name, one in files),
        *([_printable(name), reason] for name, reason in sorted(content.unknown.items())),
    ]


def _printable(name: str) -> str:
    """Return a path that UTF-8 can represent. Such a path never equals a path of the user."""
    return name.encode("utf-8", "backslashreplace").decode()


if __name__ == "__main__":
    sys.exit(main())
