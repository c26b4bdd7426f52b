"""The snapshots of a folder in the trial's checkpoint store.

A snapshot is a checkpoint with the single file `folder.tar`. The Core API's `init` is not used: it
reports an environment and an exit, which belong to the program that the user runs.
"""

from __future__ import annotations

import uuid
from pathlib import Path

from detcloud.core.checkpoint_reader import CheckpointReader
from detcloud.core.checkpoint_writer import CheckpointWriter
from detcloud.core.temporary_folder import make_temporary_folder
from detcloud.launch.folder_archive import (
    FolderContent,
    FolderRules,
    empty_folder,
    pack_folder,
    unpack_folder,
)
from detcloud.shared.errors import DetcloudError
from detcloud.shared.folder_snapshots import ARCHIVE, FOLDER, KIND
from detcloud.shared.trial_directory import TrialDirectory
from detcloud.storage import build_store


class FolderStore:
    """Saves and restores a folder in the checkpoint store of a trial."""

    def __init__(self, directory: TrialDirectory) -> None:
        """Open the store. Raises DetcloudError if checkpoints are not stored, or the store cannot
        be used.
        """
        spec = directory.spec
        if spec.storage is None:
            raise DetcloudError("checkpoint storage is disabled, so that no files are kept")
        self._directory = directory
        self._store = build_store(spec.storage)
        self._saved = 0

    def save(self, folder: Path, rules: FolderRules) -> FolderContent:
        """Store the content of a folder as a checkpoint, and return the packed content.

        Raises DetcloudError if the snapshot cannot be stored or reported; the snapshot before
        stays. Raises OSError if the folder cannot be read or packed.
        """
        with make_temporary_folder("detcloud-snapshot-") as temporary:
            archive = Path(temporary) / ARCHIVE
            with archive.open("wb") as file:
                content = pack_folder(folder, file, rules)
            number = self._saved + 1
            metadata = {
                KIND: FOLDER,
                "steps_completed": number,
                "entries": content.entries,
                "size_bytes": content.size_bytes,
            }
            report = self._directory.report.append
            writer = CheckpointWriter(self._directory.spec, self._store, report)
            writer.store_files(str(uuid.uuid4()), {ARCHIVE: archive}, metadata)
        self._saved = number
        return content

    def restore(self, folder: Path, rules: FolderRules) -> None:
        """Replace the content of a folder by the snapshot with which the trial starts.

        The snapshot is read and verified before the folder is emptied. Raises DetcloudError if the
        snapshot is damaged, missing or refused, or the store fails. Raises OSError.
        """
        reference = self._directory.spec.latest_checkpoint
        assert reference is not None
        reader = CheckpointReader(self._store, reference)
        if ARCHIVE not in reader.file_names():
            raise DetcloudError(f"checkpoint {reference.uuid} is no snapshot of a folder")
        with make_temporary_folder("detcloud-snapshot-") as temporary:
            reader.copy_files(Path(temporary), lambda name: name == ARCHIVE)
            empty_folder(folder, rules.mounts)
            unpack_folder(Path(temporary) / ARCHIVE, folder)
