"""Checkpoints: written in two phases, fenced by the epoch in their path, verified when restored."""

from __future__ import annotations

import json
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any

from detcloud.core.checkpoint_writer import METADATA, CheckpointWriter, size_and_sha256
from detcloud.core.distributed_context import DistributedContext
from detcloud.core.shards import Shard, assign_files, manifest_entries, merge_metadata
from detcloud.shared.checkpoint_limits import (
    CHECKPOINT_FILES_MAX,
    MANIFEST,
)
from detcloud.shared.errors import DetcloudError
from detcloud.shared.trial_directory import (
    LINE_BYTES_MAX,
    CheckpointReference,
    Reporter,
    TrialSpec,
    to_json_value,
)
from detcloud.storage import (
    CheckpointStore,
    KeyExists,
    KeyNotFound,
    StorageError,
    checked_key,
)

# Leaves room for the rest of the report line that carries them.
METADATA_BYTES_MAX = LINE_BYTES_MAX - 16 * 1024

Selector = Callable[[str], bool]
"""A function that says of a file's path within the checkpoint whether it is wanted."""


class DownloadMode(Enum):
    """The ranks that fetch a checkpoint: the first of each node for all there, or each its own."""

    LocalWorkersShareDownload = "LOCAL_WORKERS_SHARE_DOWNLOAD"
    NoSharedDownload = "NO_SHARED_DOWNLOAD"


class CheckpointContext:
    """Writes and reads checkpoints of one trial; `store` None means that storage is off."""

    def __init__(
        self,
        spec: TrialSpec,
        store: CheckpointStore | None,
        report: Reporter,
        *,
        on_cluster: bool,
        distributed: DistributedContext | None = None,
    ) -> None:
        """`distributed`: the trial's processes; the chief alone stores what is not sharded."""
        self._distributed = distributed or DistributedContext()
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
        batches. With `shard` every rank calls this, fills a folder of its own and gives metadata,
        which are merged: all files become one checkpoint. Nothing is stored or reported where a
        block raises; what fails afterwards, a full disk for one, raises DetcloudError on every rank
        and leaves the checkpoints before it as they are.
        """
        if shard and self._distributed.size > 1:
            with self._store_own_shard(metadata) as place:
                yield place
            return
        checked = self._checked_metadata(metadata)
        checkpoint_uuid = str(uuid.uuid4())
        with tempfile.TemporaryDirectory(prefix="detcloud-checkpoint-") as folder:
            yield Path(folder), checkpoint_uuid
            self._store_folder(Path(folder), checkpoint_uuid, checked)

    def upload(
        self,
        directory: str | Path | None,
        metadata: dict[str, Any] | None = None,
        *,
        shard: bool = False,
        selector: Selector | None = None,
    ) -> str:
        """Store the files of `directory`, all or those that `selector` takes, as a checkpoint.

        Returns its UUID; `metadata`, `shard` and errors as for `store_path`. A rank that has no
        file of a sharded checkpoint gives None.
        """
        if shard and self._distributed.size > 1:
            folder = None if directory is None else Path(directory)
            return self._store_shard(
                self._distributed.broadcast(str(uuid.uuid4())), folder, metadata, selector
            )
        if directory is None:
            raise DetcloudError(
                "upload needs a directory, but on some ranks of a sharded checkpoint"
            )
        checked = self._checked_metadata(metadata)
        checkpoint_uuid = str(uuid.uuid4())
        if not Path(directory).is_dir():
            raise DetcloudError(f"{directory} is no directory: nothing can be uploaded from it")
        self._store_folder(Path(directory), checkpoint_uuid, checked, selector)
        return checkpoint_uuid

    @contextmanager
    def restore_path(
        self,
        checkpoint: str | CheckpointReference,
        download_mode: DownloadMode = DownloadMode.LocalWorkersShareDownload,
        *,
        selector: Selector | None = None,
    ) -> Iterator[Path]:
        """Yield a folder with the verified files of a checkpoint; remove it afterwards.

        The ranks of a node share one, which the first of them fetches and removes once all have
        left the block: every rank calls this. With `NoSharedDownload` each has its own.
        """
        ranks = self._sharing_ranks(download_mode)
        if ranks is None or ranks.local_rank == 0:
            with tempfile.TemporaryDirectory(prefix="detcloud-checkpoint-") as folder:
                self._fetch(checkpoint, Path(folder), selector, ranks)
                try:
                    yield Path(folder)
                finally:
                    if ranks is not None:
                        ranks.allgather_local(None)
            return
        fetched = self._await_fetched(ranks)
        try:
            yield fetched
        finally:
            ranks.allgather_local(None)

    def download(
        self,
        checkpoint: str | CheckpointReference,
        directory: str | Path,
        download_mode: DownloadMode = DownloadMode.LocalWorkersShareDownload,
        *,
        selector: Selector | None = None,
    ) -> None:
        """Copy a checkpoint's files, all or those that `selector` takes, into `directory`.

        The first rank of a node does so for all, which call this too; with `NoSharedDownload` each
        does. Raises DetcloudError where it is unknown or a digest differs from the manifest's.
        """
        ranks = self._sharing_ranks(download_mode)
        if ranks is None or ranks.local_rank == 0:
            self._fetch(checkpoint, Path(directory), selector, ranks)
        else:
            self._await_fetched(ranks)

    def _sharing_ranks(self, mode: DownloadMode) -> DistributedContext | None:
        """The ranks of which one fetches for a node; None where this process does it alone."""
        ranks = self._distributed
        shares = mode is DownloadMode.LocalWorkersShareDownload and ranks.local_size > 1
        return ranks if shares and ranks.can_exchange else None

    def _fetch(
        self,
        checkpoint: str | CheckpointReference,
        root: Path,
        selector: Selector | None,
        ranks: DistributedContext | None,
    ) -> None:
        """Copy the files, and tell the ranks that wait for them where they are, or what failed."""
        try:
            self._copy_files(checkpoint, root, selector)
        except Exception as error:
            if ranks is not None:
                ranks.broadcast_local(("", str(error)))
            raise
        if ranks is not None:
            ranks.broadcast_local((str(root), ""))

    def _await_fetched(self, ranks: DistributedContext) -> Path:
        place, failure = ranks.broadcast_local(("", ""))
        if failure:
            raise DetcloudError(f"the first process of this node could not fetch it: {failure}")
        return Path(place)

    def _copy_files(
        self, checkpoint: str | CheckpointReference, root: Path, selector: Selector | None
    ) -> None:
        reference = self._resolve_checkpoint(checkpoint)
        manifest = self._read_manifest(reference)
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

    def store_output(self, key: str, source: Path) -> bool:
        """Store a file that belongs to no checkpoint; whether the key was free.

        Keys lie below `EXPERIMENT/TRIAL/RUN/outputs`, where only this run may write. Such files
        stay until somebody deletes them. Where storage is off they are thrown away.
        """
        if self._store is None:
            return True
        try:
            self._store.put(key, source)
        except KeyExists:
            return False
        return True

    def output_place(self, key: str) -> str:
        """The place of stored outputs, for a line of the log."""
        if self._store is None:
            return "no place, since checkpoint storage is off"
        root = self._store.root
        return f"{key} of the checkpoint storage" if root is None else str(root / key)

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
        if size_and_sha256(destination) != (entry["size"], entry["sha256"]):
            raise DetcloudError(
                f"checkpoint {reference.uuid}: {name} is not the file that was stored; {promised}"
            )

    def get_metadata(self, checkpoint: str | CheckpointReference) -> dict[str, Any]:
        """The metadata a checkpoint was stored with."""
        metadata: dict[str, Any] = self._read_manifest(self._resolve_checkpoint(checkpoint))[
            "metadata"
        ]
        return metadata

    @contextmanager
    def _store_own_shard(self, metadata: dict[str, Any] | None) -> Iterator[tuple[Path, str]]:
        checkpoint_uuid = self._distributed.broadcast(str(uuid.uuid4()))
        with tempfile.TemporaryDirectory(prefix="detcloud-checkpoint-") as folder:
            try:
                yield Path(folder), checkpoint_uuid
            except Exception as error:
                # The others must not wait for a shard that will never come.
                self._distributed.allgather(Shard(failure=f"{type(error).__name__}: {error}"))
                raise
            self._store_shard(checkpoint_uuid, Path(folder), metadata)

    def _store_shard(
        self,
        checkpoint_uuid: str,
        folder: Path | None,
        metadata: dict[str, Any] | None,
        selector: Selector | None = None,
    ) -> str:
        """Store this rank's part of a checkpoint, in step with all others; the UUID."""
        ranks, sources = self._distributed, dict[str, Path]()
        try:
            if folder is not None and not folder.is_dir():
                raise DetcloudError(f"{folder} is no directory: nothing can be uploaded from it")
            sources = _files_to_store(folder, selector) if folder is not None else {}
            own = Shard(
                {name: size_and_sha256(path) for name, path in sources.items()},
                to_json_value(metadata or {}, "metadata"),
            )
        except (DetcloudError, OSError) as error:
            own = Shard(failure=str(error))
        shards = ranks.allgather(own)
        owners = assign_files(shards)
        merged = self._checked_steps(merge_metadata(shards))
        if self._store is None:
            _tell_of_no_storage()
            return checkpoint_uuid
        files = {name: sources[name] for name, rank in owners.items() if rank == ranks.rank}
        writer = CheckpointWriter(self._spec, self._store, self._report)
        self._known[checkpoint_uuid] = writer.store_shard(
            checkpoint_uuid, ranks, files, manifest_entries(shards, owners), merged
        )
        return checkpoint_uuid

    def _checked_metadata(self, metadata: dict[str, Any] | None) -> dict[str, Any]:
        if self._distributed.rank and self._distributed.can_exchange:
            raise DetcloudError(
                f"rank {self._distributed.rank} cannot store a checkpoint, which is the chief's: "
                "call store_path or upload on rank 0 alone, or with shard=True on every rank"
            )
        return self._checked_steps(to_json_value(metadata or {}, "metadata"))

    def _checked_steps(self, checked: dict[str, Any]) -> dict[str, Any]:
        """The metadata, which have the number of batches and are not too large."""
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
            _tell_of_no_storage()
            return
        files = _files_to_store(folder, selector)
        self._known[checkpoint_uuid] = CheckpointWriter(
            self._spec, self._store, self._report
        ).store_files(checkpoint_uuid, files, metadata)

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
            digest = size_and_sha256(place)[1]
            if reference.manifest_sha256 not in (None, digest):
                raise DetcloudError(
                    f"checkpoint {reference.uuid}: {MANIFEST} has SHA-256 {digest}, but the "
                    f"cluster recorded {reference.manifest_sha256}"
                )
            return _parse_manifest(place, reference)


def _tell_of_no_storage() -> None:
    text = "[detcloud] checkpoint storage is off: this checkpoint is thrown away"
    print(text, file=sys.stderr)


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
