"""Local copies of trials' TensorBoard files, which are kept up to date."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterable
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

from detcloud.client.download import name_write_errors
from detcloud.client.records import EventFile, EventFilePart
from detcloud.shared.archive_limits import ArchiveInvalid
from detcloud.shared.archive_names import NameChecker
from detcloud.shared.files import read_json_object, write_atomically

if TYPE_CHECKING:
    from detcloud.client.client import Client
    from detcloud.client.handles import Trial


VERSIONS_FILE = ".detcloud-versions.json"
"""The file of a local folder with the version of each downloaded file."""


class EventFolder:
    """A local folder with a trial's TensorBoard files. `update` downloads them."""

    def __init__(self, client: Client, trial: Trial, folder: Path) -> None:
        self._client = client
        self.trial = trial
        self.folder = folder
        self._versions = _read_versions(folder)
        self._left_out: set[str] = set()

    def update(self) -> int:
        """Download new files and new content of known files, and return the bytes added.

        A file that has grown is appended to, so that a running TensorBoard continues to read it. A
        file whose version changed is deleted and downloaded again. The versions are stored in the
        folder, in VERSIONS_FILE, so that a later process continues.

        A file with an unsafe path is skipped, with one warning on stderr. Raises DetcloudError if
        the folder cannot be written.
        """
        files = self._safe_files(self.trial.event_files())
        before = dict(self._versions)
        with name_write_errors(self.folder):
            try:
                return sum(self._update_file(file) for file in files)
            finally:
                if self._versions != before:
                    write_atomically(self.folder / VERSIONS_FILE, self._versions)

    def _safe_files(self, files: Iterable[EventFile]) -> list[EventFile]:
        """Return the files with safe paths. Print a warning to stderr once for each unsafe path."""
        safe: list[EventFile] = []
        checker = NameChecker()
        for file in files:
            path = file["path"]
            try:
                checker.add(path, is_directory=False)
            except ArchiveInvalid as error:
                if path not in self._left_out:
                    self._left_out.add(path)
                    text = f"{path!r:.200} of trial {self.trial.id} is left out: {error.reason}"
                    print(text, file=sys.stderr, flush=True)
                continue
            safe.append(file)
        return safe

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
        """Append a part to the file without the first `skipped` bytes; return the bytes added."""
        with tempfile.TemporaryFile() as content:
            size = self._client.http.download(part["url"], content)
            content.seek(skipped)
            shutil.copyfileobj(content, local)
        return size - skipped


def _read_versions(folder: Path) -> dict[str, str]:
    """Return the version of each file that an earlier process downloaded into the folder.

    Empty without a folder or if VERSIONS_FILE is damaged; all files are then downloaded again.
    """
    return read_json_object(folder / VERSIONS_FILE) or {}
