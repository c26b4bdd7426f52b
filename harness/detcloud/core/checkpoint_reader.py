"""The reader of a checkpoint, which verifies the files and separates damage from store failures.

A checkpoint is damaged if the store answers that a file is missing, or returns other bytes than
were written. A store that does not answer or refuses the request proves no damage.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from detcloud.core.checkpoint_writer import Selector, size_and_sha256
from detcloud.core.manifest import parse_manifest
from detcloud.core.temporary_folder import make_temporary_folder
from detcloud.shared.bucket_errors import NoSuchBucket
from detcloud.shared.checkpoint_limits import MANIFEST, MISSING_CAUSE
from detcloud.shared.errors import DetcloudError
from detcloud.shared.transfers import FETCHED_BYTES, call_at_once
from detcloud.shared.trial_directory import CheckpointReference, Reporter
from detcloud.storage import (
    CheckpointStore,
    HashingStore,
    KeyNotFound,
    StorageError,
    checked_key,
)

# Files that consist of a single part are fetched together.
FILES_AT_ONCE = 8
# The cluster stores at most this many characters of a cause.
CAUSE_CHARACTERS_MAX = 500


class CheckpointDamaged(DetcloudError):
    """The stored files of a checkpoint differ from the files that were written.

    `cause` names the difference.
    """

    def __init__(self, reference: CheckpointReference, cause: str) -> None:
        super().__init__(f"checkpoint {reference.uuid} is damaged: {cause}")
        self.cause = cause


class CheckpointReader:
    """Reads the checkpoint of `reference` from a store.

    Every method needs the manifest, which is read once. Every method raises CheckpointDamaged if a
    file is missing or differs, and StorageError if the store fails.
    """

    def __init__(self, store: CheckpointStore, reference: CheckpointReference) -> None:
        """Create the reader. Read nothing yet."""
        self.reference = reference
        self._store = store
        self._manifest: dict[str, Any] | None = None

    def copy_files(self, root: Path, selector: Selector | None = None) -> None:
        """Copy the checkpoint's files below the folder `root`, and verify size and SHA-256 of each
        copy.

        With a `selector`, copy only the files whose names the selector accepts. A copy that differs
        is fetched once more. Folders are created, existing files replaced. Small files are fetched
        several at a time if the store allows this.
        """
        entries = {
            # The rule for keys of a store also refuses names that lead out of the folder.
            name: (entry, root / checked_key(name))
            for name, entry in self.read_manifest()["files"].items()
            if selector is None or selector(name)
        }
        for _, destination in entries.values():
            destination.parent.mkdir(parents=True, exist_ok=True)
        self._fetch_files(entries)

    def file_names(self) -> list[str]:
        """Return the names of the checkpoint's files, as listed in the manifest."""
        return list(self.read_manifest()["files"])

    def read_manifest(self) -> dict[str, Any]:
        """Return the manifest, verified by the reference's SHA-256, if recorded.

        A manifest that differs is fetched once more.
        """
        if self._manifest is None:
            self._manifest = self._fetch_manifest()
        return self._manifest

    def _fetch_files(self, entries: dict[str, tuple[dict[str, Any], Path]]) -> None:
        """Fetch files. `entries` maps names to entries of the manifest with destinations.

        Large files are fetched one after the other, because a store fetches several parts at once.
        """

        def copy(name: str) -> None:
            self._copy_file(name, *entries[name])

        is_concurrent = isinstance(self._store, HashingStore)
        small = {name for name, (entry, _) in entries.items() if is_concurrent and _is_small(entry)}
        call_at_once(copy, small, FILES_AT_ONCE)
        for name in entries:
            if name not in small:
                copy(name)

    def _fetch_manifest(self) -> dict[str, Any]:
        """Read, verify and parse the manifest in the store."""
        with make_temporary_folder("detcloud-manifest-") as folder:
            place = Path(folder) / MANIFEST
            recorded = self.reference.manifest_sha256
            digest = self._get(MANIFEST, place, "")[1]
            if recorded not in (None, digest):
                # A second transfer rules out an error of the first transfer.
                digest = self._get(MANIFEST, place, "")[1]
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
        """Copy a file to `destination`, twice if the first copy differs from the manifest's
        `entry`.

        Raises CheckpointDamaged if the file is missing or both copies differ.
        """
        promised = f"; {MANIFEST} lists {entry['size']} bytes with SHA-256 {entry['sha256']}"
        for _ in range(2):
            found = self._get(name, destination, promised)
            if found == (entry["size"], entry["sha256"]):
                return
        text = f"{name} is not the file that was stored: {found[0]} bytes with SHA-256 {found[1]}"
        raise CheckpointDamaged(self.reference, f"{text}{promised}")

    def _get(self, name: str, destination: Path, promised: str) -> tuple[int, str]:
        """Copy a file to `destination`, and return the size and the SHA-256 of the copy.

        Raises CheckpointDamaged if the store has no such file, and StorageError if the store fails.
        `promised` is appended to both messages.
        """
        key = f"{self.reference.path}/{name}"
        try:
            if isinstance(self._store, HashingStore):
                digest = self._store.get_hashed(key, destination)
                return destination.stat().st_size, digest
            self._store.get(key, destination)
        except StorageError as error:
            if self._is_missing(key, error):
                cause = f"{MISSING_CAUSE}{name} in {self.reference.path}{promised}"
                raise CheckpointDamaged(self.reference, cause) from None
            raise StorageError(
                f"checkpoint {self.reference.uuid}: {name} cannot be read: {error}{promised}"
            ) from error
        return size_and_sha256(destination)

    def _is_missing(self, key: str, error: StorageError) -> bool:
        """Return whether the store has no file under `key`. False means that the store itself
        failed.

        `error` is the error of the failed read.
        """
        of_trial = "/".join(self.reference.path.split("/")[:2])
        root = self._store.root
        if root is not None:
            # A missing mount looks like an empty folder, so the trial's folder must exist.
            return _is_there(root / of_trial) is True and _is_there(root / key) is False
        # S3 denies access to a missing key if the client may list only a folder, so the list
        # decides. The list also fails for a missing bucket, which some stores report as a missing
        # file.
        try:
            if found := self._store.list(self.reference.path):
                return key not in found
        except StorageError as refusal:
            is_gone = isinstance(refusal.__cause__, NoSuchBucket)
            return isinstance(error, KeyNotFound) and not is_gone
        try:
            # A bucket that was lost and created again has nothing of the trial.
            return bool(self._store.list(of_trial))
        except StorageError:
            # A run may not list the folder of another trial.
            return True


def _is_small(entry: dict[str, Any]) -> bool:
    """Return whether a store fetches the file of a manifest's entry as a single part."""
    size = entry["size"]
    return isinstance(size, int) and size <= FETCHED_BYTES


def report_damage(
    damage: CheckpointDamaged, reference: CheckpointReference, report: Reporter
) -> None:
    """Print the damage of the run's first checkpoint to the trial's log, and report the damage.

    A failed report is only printed.
    """
    text = f"[detcloud] {damage}; the trial restarts without it"
    print(text, file=sys.stderr, flush=True)
    try:
        report(
            "checkpoint_damage", uuid=reference.uuid, message=damage.cause[:CAUSE_CHARACTERS_MAX]
        )
    except DetcloudError as error:
        # The run fails with the damage. A full disk must not replace that error.
        print(f"[detcloud] the damage was not reported: {error}", file=sys.stderr, flush=True)


def _is_there(path: Path) -> bool | None:
    """Return whether `path` exists, links followed. Return None if the file system fails."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return None
    return True
