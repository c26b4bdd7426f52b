"""Copies of trials' files for TensorBoard in a folder of this machine, which follow the trials."""

from __future__ import annotations

import shutil
import tempfile
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

from detcloud.client.download import name_write_errors
from detcloud.client.records import EventFile, EventFilePart
from detcloud.shared.archive_names import NameChecker

if TYPE_CHECKING:
    from detcloud.client.client import Client
    from detcloud.client.trial import Trial


class EventFolder:
    """A folder with the files of one trial, which `update` fetches."""

    def __init__(self, client: Client, trial: Trial, folder: Path) -> None:
        self._client = client
        self.trial = trial
        self.folder = folder
        self._versions: dict[str, str] = {}

    def update(self) -> int:
        """Fetch what is new and return its bytes.

        A file that has grown is appended to, since TensorBoard goes on reading where it was.

        Raises:
            DetcloudError: a path that could leave the folder, or a folder that takes no files.
        """
        files = self.trial.event_files()
        checker = NameChecker()
        for file in files:
            checker.add(file["path"], is_directory=False)
        with name_write_errors(self.folder):
            return sum(self._update_file(file) for file in files)

    def _update_file(self, file: EventFile) -> int:
        path = self.folder / file["path"]
        is_same = self._versions.get(file["path"]) == file["version"]
        have = path.stat().st_size if is_same and path.exists() else 0
        if have == file["size"] and is_same:
            return 0
        path.parent.mkdir(parents=True, exist_ok=True)
        if have > file["size"]:
            have = 0
        if not have:
            path.unlink(missing_ok=True)
        start, fetched = 0, 0
        with path.open("ab", buffering=0) as local:
            for part in file["parts"]:
                end = start + part["size"]
                if end > have + fetched:
                    fetched += self._append(local, part, have + fetched - start)
                start = end
        self._versions[file["path"]] = file["version"]
        return fetched

    def _append(self, local: FileIO, part: EventFilePart, skipped: int) -> int:
        """Append a part to a file, without its first `skipped` bytes; return the bytes."""
        with tempfile.TemporaryFile() as content:
            size = self._client.http.download(part["url"], content)
            content.seek(skipped)
            shutil.copyfileobj(content, local)
        return size - skipped
