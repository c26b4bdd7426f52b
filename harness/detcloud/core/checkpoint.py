"""Checkpoints: written in two phases, fenced by the epoch in their path, verified when restored."""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from detcloud.shared.checkpoint_limits import (
    CHECKPOINT_FILES_MAX,
    MANIFEST,
    MANIFEST_BYTES_MAX,
)
from detcloud.shared.errors import DetcloudError
from detcloud.shared.trial_directory import (
    LINE_BYTES_MAX,
    CheckpointReference,
    Reporter,
    TrialSpec,
    to_json_value,
)
from detcloud.storage import CheckpointStore, KeyNotFound, StorageError, checked_key

METADATA = "metadata.json"
# Leaves room for the rest of the report line that carries them.
METADATA_BYTES_MAX = LINE_BYTES_MAX - 16 * 1024

Selector = Callable[[str], bool]
"""A function that says of a file's path within the checkpoint whether it is wanted."""


class CheckpointContext:
    """Writes and reads checkpoints of one trial; `store` None means that storage is off."""

    def __init__(
        self,
        spec: TrialSpec,
        store: CheckpointStore | None,
        report: Reporter,
        *,
        on_cluster: bool,
        worker_rank: int = 0,
    ) -> None:
        """`worker_rank` is above 0 for a process that is not the chief, which stores nothing."""
        self._worker_rank = worker_rank
        self._spec = spec
        self._store = store
        self._report = report
        self._on_cluster = on_cluster
        self._known: dict[str, CheckpointReference] = {}
        if spec.latest_checkpoint is not None:
            self._known[spec.latest_checkpoint.uuid] = spec.latest_checkpoint

    @contextmanager
    def store_path(
        self, metadata: dict[str, Any] | None = None, *, shard: bool = False
    ) -> Iterator[tuple[Path, str]]:
        """Yield an empty folder to fill and the new checkpoint's UUID; store it afterwards.

        `metadata` is plain JSON data; on a cluster it must have `steps_completed`, a count of
        batches. `shard` makes no difference to a trial of one process. Nothing is stored or
        reported where the block raises; what fails afterwards, a full disk for one, raises
        DetcloudError and leaves the checkpoints before it as they are.
        """
        checked = self._checked_metadata(metadata)
        checkpoint_uuid = str(uuid.uuid4())
        with tempfile.TemporaryDirectory(prefix="detcloud-checkpoint-") as folder:
            yield Path(folder), checkpoint_uuid
            self._store_folder(Path(folder), checkpoint_uuid, checked)

    def upload(
        self,
        directory: str | Path,
        metadata: dict[str, Any] | None = None,
        *,
        shard: bool = False,
        selector: Selector | None = None,
    ) -> str:
        """Store the files of `directory`, all or those that `selector` takes, as a checkpoint.

        Returns its UUID; `metadata`, `shard` and errors as for `store_path`.
        """
        checked = self._checked_metadata(metadata)
        checkpoint_uuid = str(uuid.uuid4())
        if not Path(directory).is_dir():
            raise DetcloudError(f"{directory} is no directory: nothing can be uploaded from it")
        self._store_folder(Path(directory), checkpoint_uuid, checked, selector)
        return checkpoint_uuid

    @contextmanager
    def restore_path(
        self, checkpoint: str | CheckpointReference, *, selector: Selector | None = None
    ) -> Iterator[Path]:
        """Yield a folder with the verified files of a checkpoint; remove it afterwards."""
        with tempfile.TemporaryDirectory(prefix="detcloud-checkpoint-") as folder:
            self.download(checkpoint, folder, selector=selector)
            yield Path(folder)

    def download(
        self,
        checkpoint: str | CheckpointReference,
        directory: str | Path,
        *,
        selector: Selector | None = None,
    ) -> None:
        """Copy a checkpoint's files, all or those that `selector` takes, into `directory`.

        Raises DetcloudError where it is unknown or a digest differs from the manifest's.
        """
        reference = self._resolve_checkpoint(checkpoint)
        manifest = self._read_manifest(reference)
        root = Path(directory)
        for name, entry in manifest["files"].items():
            if selector is None or selector(name):
                # The store's own rule for keys also keeps a file within `directory`.
                self._fetch_file(reference, name, entry, root / checked_key(name))

    def delete(self, checkpoint: str | CheckpointReference) -> None:
        """Delete a checkpoint's files, without a cluster.

        On a cluster it raises DetcloudError: there `checkpoint_storage.save_*` and `detcloud
        checkpoint delete` say what is kept, so that no record outlives its files.
        """
        reference = self._resolve_checkpoint(checkpoint)
        if self._on_cluster:
            raise DetcloudError(
                f"checkpoint {reference.uuid} cannot be deleted by its trial: use `detcloud "
                "checkpoint delete`, or save_trial_latest and its like in the configuration"
            )
        store = self._open_store()
        # Without its manifest it does not exist, whatever becomes of the rest.
        store.delete(f"{reference.path}/{MANIFEST}")
        for key in store.list(reference.path):
            store.delete(key)
        self._known.pop(reference.uuid, None)

    def _fetch_file(
        self, reference: CheckpointReference, name: str, entry: dict[str, Any], destination: Path
    ) -> None:
        promised = f"{MANIFEST} promises {entry['size']} bytes with SHA-256 {entry['sha256']}"
        destination.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._open_store().get(f"{reference.path}/{name}", destination)
        except StorageError as error:
            raise DetcloudError(
                f"checkpoint {reference.uuid}: {name} cannot be read: {error}; {promised}"
            ) from error
        if _size_and_sha256(destination) != (entry["size"], entry["sha256"]):
            raise DetcloudError(
                f"checkpoint {reference.uuid}: {name} is not the file that was stored; {promised}"
            )

    def get_metadata(self, checkpoint: str | CheckpointReference) -> dict[str, Any]:
        """The metadata a checkpoint was stored with."""
        metadata: dict[str, Any] = self._read_manifest(self._resolve_checkpoint(checkpoint))[
            "metadata"
        ]
        return metadata

    def _checked_metadata(self, metadata: dict[str, Any] | None) -> dict[str, Any]:
        if self._worker_rank:
            raise DetcloudError(
                f"rank {self._worker_rank} cannot store a checkpoint, which is the chief's: gather "
                "what belongs into it, and call store_path or upload on rank 0 alone"
            )
        checked: dict[str, Any] = to_json_value(metadata or {}, "metadata")
        steps = checked.get("steps_completed", None if self._on_cluster else 0)
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
            raise DetcloudError(
                f"checkpoint metadata has steps_completed {steps!r}: on a cluster it must be the "
                "number of batches completed"
            )
        size = len(json.dumps(checked))
        if size > METADATA_BYTES_MAX:
            raise DetcloudError(
                f"checkpoint metadata have {size} bytes, the limit is {METADATA_BYTES_MAX}: write "
                "what is large into a file of the checkpoint"
            )
        return checked

    def _store_folder(
        self,
        folder: Path,
        checkpoint_uuid: str,
        metadata: dict[str, Any],
        selector: Selector | None = None,
    ) -> None:
        if self._store is None:
            print(
                "[detcloud] checkpoint storage is off: this checkpoint is thrown away",
                file=sys.stderr,
            )
            return
        spec, files = self._spec, _files_to_store(folder, selector)
        path = f"{spec.experiment_id}/{spec.trial_id}/{spec.epoch}/{checkpoint_uuid}"
        common = {
            "uuid": checkpoint_uuid,
            "steps_completed": metadata.get("steps_completed", 0),
            "path": path,
        }
        self._report("checkpoint_intent", **common)
        entries, digest = self._put_files(common, files, metadata)
        self._report(
            "checkpoint",
            **common,
            manifest_sha256=digest,
            size_bytes=sum(entry["size"] for entry in entries.values()),
            files=len(entries),
            metadata=metadata,
        )
        self._known[checkpoint_uuid] = CheckpointReference(
            checkpoint_uuid, spec.trial_id, path, common["steps_completed"], digest
        )

    def _put_files(
        self, common: dict[str, Any], files: dict[str, Path], metadata: dict[str, Any]
    ) -> tuple[dict[str, dict[str, Any]], str]:
        """Store the files and last the manifest; the manifest's entries and its SHA-256.

        Files stored before a failure are deleted, since they may have filled the disk.
        """
        stored: list[str] = []

        def put(name: str, source: Path) -> tuple[int, str]:
            key = f"{common['path']}/{name}"
            self._open_store().put(key, source)
            stored.append(key)
            return _size_and_sha256(source)

        try:
            with tempfile.TemporaryDirectory(prefix="detcloud-document-") as folder:
                digests = {METADATA: put(METADATA, _write_document(folder, METADATA, metadata))}
                digests |= {name: put(name, source) for name, source in files.items()}
                entries = {name: {"size": size, "sha256": h} for name, (size, h) in digests.items()}
                manifest = {
                    "version": 1,
                    "uuid": common["uuid"],
                    "cluster_id": self._spec.cluster_id,
                    "trial_id": self._spec.trial_id,
                    "steps_completed": common["steps_completed"],
                    "files": entries,
                    "metadata": metadata,
                }
                document = _write_document(folder, MANIFEST, manifest)
                if (size := document.stat().st_size) > MANIFEST_BYTES_MAX:
                    raise StorageError(
                        f"{MANIFEST} has {size} bytes, the limit is {MANIFEST_BYTES_MAX}: store "
                        "fewer files or shorter names"
                    )
                return entries, put(MANIFEST, document)[1]
        except (StorageError, OSError) as error:
            for key in stored:
                with suppress(StorageError):
                    self._open_store().delete(key)
            raise DetcloudError(
                f"checkpoint {common['uuid']} at batch {common['steps_completed']} was not "
                f"stored: {error}; the one before it is still the latest"
            ) from error

    def _open_store(self) -> CheckpointStore:
        if self._store is None:
            raise DetcloudError("checkpoint storage is off: there is nothing to restore from")
        return self._store

    def _resolve_checkpoint(self, checkpoint: str | CheckpointReference) -> CheckpointReference:
        if isinstance(checkpoint, CheckpointReference):
            return checkpoint
        if checkpoint in self._known:
            return self._known[checkpoint]
        if not self._on_cluster:
            spec = self._spec
            path = f"{spec.experiment_id}/{spec.trial_id}/{spec.epoch}/{checkpoint}"
            return CheckpointReference(checkpoint, spec.trial_id, path)
        known = ", ".join(self._known) or "none"
        raise DetcloudError(
            f"checkpoint {checkpoint!r} is not known to this trial; known: {known}. A trial may "
            "restore its latest checkpoint and those that it wrote itself"
        )

    def _read_manifest(self, reference: CheckpointReference) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="detcloud-manifest-") as folder:
            place = Path(folder) / MANIFEST
            try:
                self._open_store().get(f"{reference.path}/{MANIFEST}", place)
            except KeyNotFound:
                raise DetcloudError(
                    f"checkpoint {reference.uuid} does not exist: {reference.path} has no "
                    f"{MANIFEST}"
                ) from None
            digest = _size_and_sha256(place)[1]
            if reference.manifest_sha256 not in (None, digest):
                raise DetcloudError(
                    f"checkpoint {reference.uuid}: {MANIFEST} has SHA-256 {digest}, but the "
                    f"cluster recorded {reference.manifest_sha256}"
                )
            return _parse_manifest(place, reference)


def _parse_manifest(place: Path, reference: CheckpointReference) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads(place.read_bytes())
        entries = manifest["files"].values()
        complete = all({"size", "sha256"} <= set(entry) for entry in entries)
        if not complete or manifest["version"] != 1 or not isinstance(manifest["metadata"], dict):
            raise ValueError("a field is missing or its version is not 1")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DetcloudError(
            f"checkpoint {reference.uuid}: {MANIFEST} cannot be read: {error!r}"
        ) from None
    return manifest


def _write_document(folder: str, name: str, content: dict[str, Any]) -> Path:
    path = Path(folder) / name
    path.write_text(json.dumps(content, indent=1, sort_keys=True), encoding="utf-8")
    return path


def _files_to_store(folder: Path, selector: Selector | None) -> dict[str, Path]:
    """The wanted files of a folder by their relative path; DetcloudError for a link among them, or
    for too many.
    """
    files = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_dir() and not path.is_symlink():
            continue
        if selector is not None and not selector(name):
            continue
        if path.is_symlink() or not path.is_file():
            raise DetcloudError(
                f"{path} is a link or a special file: a checkpoint holds only files"
            )
        if name == MANIFEST:
            raise DetcloudError(f"{path} cannot be stored: {MANIFEST} is the checkpoint's own file")
        if name != METADATA:
            files[checked_key(name)] = path
    # The metadata are a file too.
    if len(files) + 1 > CHECKPOINT_FILES_MAX:
        raise DetcloudError(
            f"the checkpoint has {len(files)} files, the limit is {CHECKPOINT_FILES_MAX - 1}: "
            "store many small files as one, such as a tar file"
        )
    return files


def _size_and_sha256(path: Path) -> tuple[int, str]:
    with path.open("rb") as content:
        return path.stat().st_size, hashlib.file_digest(content, "sha256").hexdigest()
