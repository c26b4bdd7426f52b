"""The reader of a checkpoint: its files are verified, and damage is told from a store's failure.

Damage is what the store itself shows: it has no such file, or other bytes than were written. A
store that does not answer or refuses says nothing about the checkpoint.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from detcloud.core.checkpoint_writer import Selector, size_and_sha256
from detcloud.core.manifest import parse_manifest
from detcloud.core.temporary_folder import make_temporary_folder
from detcloud.shared.bucket_errors import NoSuchBucket
from detcloud.shared.checkpoint_limits import MANIFEST
from detcloud.shared.errors import DetcloudError
from detcloud.shared.trial_directory import CheckpointReference, Reporter
from detcloud.storage import CheckpointStore, KeyNotFound, StorageError, checked_key

# The cluster keeps as much of it.
CAUSE_CHARACTERS_MAX = 500


class CheckpointDamaged(DetcloudError):
    """The stored files of a checkpoint are not those that were written; `cause` says how."""

    def __init__(self, reference: CheckpointReference, cause: str) -> None:
        super().__init__(f"checkpoint {reference.uuid} is damaged: {cause}")
        self.cause = cause


class CheckpointReader:
    """Reads the checkpoint of a reference from a store.

    Every method raises CheckpointDamaged, and StorageError where the store fails.
    """

    def __init__(self, store: CheckpointStore, reference: CheckpointReference) -> None:
        self.reference = reference
        self._store = store

    def copy_files(self, root: Path, selector: Selector | None = None) -> None:
        """Copy the files, all or those that `selector` takes, into a folder, and verify them."""
        for name, entry in self.read_manifest()["files"].items():
            if selector is None or selector(name):
                # The store's own rule for keys also keeps a file within the folder.
                self._copy_file(name, entry, root / checked_key(name))

    def file_names(self) -> list[str]:
        """The names of the files."""
        return list(self.read_manifest()["files"])

    def read_manifest(self) -> dict[str, Any]:
        """The verified manifest."""
        with make_temporary_folder("detcloud-manifest-") as folder:
            place = Path(folder) / MANIFEST
            recorded = self.reference.manifest_sha256
            self._get(MANIFEST, place, "")
            digest = size_and_sha256(place)[1]
            if recorded not in (None, digest):
                # The second look rules out what only this transfer did to it.
                self._get(MANIFEST, place, "")
                digest = size_and_sha256(place)[1]
            if recorded not in (None, digest):
                raise CheckpointDamaged(
                    self.reference,
                    f"{MANIFEST} has SHA-256 {digest}, but the cluster recorded {recorded}",
                )
            try:
                return parse_manifest(place)
            except ValueError as error:
                raise CheckpointDamaged(self.reference, str(error)) from None

    def _copy_file(self, name: str, entry: dict[str, Any], destination: Path) -> None:
        promised = f"; {MANIFEST} lists {entry['size']} bytes with SHA-256 {entry['sha256']}"
        destination.parent.mkdir(parents=True, exist_ok=True)
        for _ in range(2):
            self._get(name, destination, promised)
            found = size_and_sha256(destination)
            if found == (entry["size"], entry["sha256"]):
                return
        text = f"{name} is not the file that was stored: {found[0]} bytes with SHA-256 {found[1]}"
        raise CheckpointDamaged(self.reference, f"{text}{promised}")

    def _get(self, name: str, destination: Path, promised: str) -> None:
        key = f"{self.reference.path}/{name}"
        try:
            self._store.get(key, destination)
        except StorageError as error:
            if self._is_missing(key, error):
                cause = f"the store has no {name} in {self.reference.path}{promised}"
                raise CheckpointDamaged(self.reference, cause) from None
            raise StorageError(
                f"checkpoint {self.reference.uuid}: {name} cannot be read: {error}{promised}"
            ) from error

    def _is_missing(self, key: str, error: StorageError) -> bool:
        """Whether the store has no such file, rather than failed."""
        root = self._store.root
        if root is not None:
            of_trial = "/".join(self.reference.path.split("/")[:2])
            # A mount that is missing looks like an empty folder.
            return _is_there(root / of_trial) is True and _is_there(root / key) is False
        # To a client that may list only one folder, S3 refuses what is not there: the list tells.
        # It tells as well that a bucket is gone, which some stores call a missing file.
        try:
            return key not in self._store.list(self.reference.path)
        except StorageError as refusal:
            is_gone = isinstance(refusal.__cause__, NoSuchBucket)
            return isinstance(error, KeyNotFound) and not is_gone


def report_damage(
    damage: CheckpointDamaged, reference: CheckpointReference, report: Reporter
) -> None:
    """Report the damage of the checkpoint that the run began from, and write it to the log."""
    text = f"[detcloud] {damage}; the trial restarts without it"
    print(text, file=sys.stderr, flush=True)
    try:
        report(
            "checkpoint_damage", uuid=reference.uuid, message=damage.cause[:CAUSE_CHARACTERS_MAX]
        )
    except DetcloudError as error:
        # The damage is what the run fails with; a full disk must not hide it.
        print(f"[detcloud] the damage was not reported: {error}", file=sys.stderr, flush=True)


def _is_there(path: Path) -> bool | None:
    """Whether a path leads to something; None where the file system does not tell."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return None
    return True
