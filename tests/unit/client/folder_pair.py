"""Two real folders in one process, connected as `detcloud dev` connects them."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

from detcloud.client.folder_sync import FolderSync
from detcloud.client.ignore_rules import IgnoreRules
from detcloud.client.trial_folder import TrialFolder
from detcloud.launch.folder_server import FolderServer
from detcloud.shared.folder_sync.folder import SyncedFolder

SIZE_MAX = 1_000


class Pair:
    """A folder of the user's machine and a folder of a trial, with a service for the latter."""

    def __init__(self, root: Path) -> None:
        self.here, self.there = root / "here", root / "there"
        self.backups = root / "backups"
        self.here.mkdir()
        self.there.mkdir()
        self.reports: list[str] = []
        self.connection, self.served = socket.socketpair()
        server = FolderServer(self.served, self.there)
        self.thread = threading.Thread(target=server.serve, daemon=True)
        self.thread.start()
        rules = IgnoreRules(self.here)
        self.folder = SyncedFolder(self.here, file_bytes_max=SIZE_MAX, is_synced=rules.names)
        self.trial = TrialFolder(self.connection, file_bytes_max=SIZE_MAX)
        self.seconds = 0.0
        self.sync = FolderSync(
            self.folder,
            self.trial,
            rules=rules,
            backups=self.backups,
            report=self.reports.append,
            fetched_bytes_max=3 * SIZE_MAX,
            now=lambda: self.seconds,
        )

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *error: object) -> None:
        self.connection.close()
        self.thread.join()
        self.served.close()

    def names(self, folder: Path) -> dict[str, bytes]:
        """Return the contents of the files in a folder, by path."""
        return {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file() and not path.is_symlink()
        }
