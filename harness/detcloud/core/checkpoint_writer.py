"""The writing of checkpoints: announced, stored, completed by a manifest, then reported."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from detcloud.core.distributed_context import DistributedContext
from detcloud.core.temporary_folder import make_temporary_folder
from detcloud.shared.checkpoint_limits import (
    CHECKPOINT_FILES_MAX,
    MANIFEST,
    MANIFEST_BYTES_MAX,
)
from detcloud.shared.errors import DetcloudError, InvalidValue
from detcloud.shared.trial_directory import (
    LINE_BYTES_MAX,
    CheckpointReference,
    Reporter,
    TrialSpec,
)
from detcloud.storage import CheckpointStore, StorageError, checked_key
from detcloud.storage.store import translate_errors

METADATA = "metadata.json"
# Leaves room for the rest of the report line that carries them.
METADATA_BYTES_MAX = LINE_BYTES_MAX - 16 * 1024
# How often a file is stored that is written on meanwhile.
PUTS_MAX = 3
Entries = Mapping[str, Mapping[str, Any]]

Stamp = tuple[int, int]

Selector = Callable[[str], bool]
"""A function that says of a file's path within the checkpoint whether it is wanted."""

MetricAt = Callable[[int], float | None]
"""The searcher's metric of this process's validation at so many batches; None where unknown."""

Check = Callable[[], None]
"""A function that raises StorageError where files have changed while they were stored."""


class CheckpointWriter:
    """Writes the checkpoints of one trial; reports count on the chief alone."""

    def __init__(
        self,
        spec: TrialSpec,
        store: CheckpointStore,
        report: Reporter,
        metric_at: MetricAt = lambda _: None,
    ) -> None:
        self._spec = spec
        self._store = store
        self._report = report
        self._metric_at = metric_at

    def store_files(
        self,
        checkpoint_uuid: str,
        files: Mapping[str, Path],
        metadata: dict[str, Any],
        check: Check = lambda: None,
    ) -> CheckpointReference:
        """Store files by their names in the checkpoint, and last the manifest, unless `check` says
        that they changed meanwhile.

        Files stored before a failure are deleted, since they may have filled the disk. Raises
        DetcloudError.
        """
        common, stored = self._new_place(checkpoint_uuid, metadata), list[str]()
        self._report("checkpoint_intent", **common)
        try:
            entries = self._put_metadata(common, metadata, stored)
            for name, source in files.items():
                entries[name] = self._put(common["path"], name, source, stored)
            check()
            digest = self._put_manifest(common, entries, metadata, stored)
        except (StorageError, OSError) as error:
            self._discard(stored)
            raise DetcloudError(_not_stored_text(common, str(error))) from error
        self._report_stored(common, entries, digest, metadata)
        return self._reference(common, digest)

    def store_shard(
        self,
        checkpoint_uuid: str,
        ranks: DistributedContext,
        files: Mapping[str, Path],
        entries: Entries,
        metadata: dict[str, Any],
        check: Check = lambda: None,
    ) -> CheckpointReference:
        """Store this rank's files of a checkpoint, in step with all other ranks; the chief stores
        the manifest with everybody's `entries` once all are there. `check` as for `store_files`.

        Raises DetcloudError on every rank where one fails, and leaves nothing.
        """
        common, stored = self._new_place(checkpoint_uuid, metadata), list[str]()
        self._report("checkpoint_intent", **common)
        # No file lies there before the chief has announced it.
        ranks.broadcast(None)
        failure, digest = "", ""
        try:
            if ranks.rank == 0:
                entries = {**self._put_metadata(common, metadata, stored), **entries}
            for name, source in files.items():
                if self._put(common["path"], name, source, stored) != entries[name]:
                    raise StorageError(f"{name} was modified while the ranks agreed on it")
            check()
        except (StorageError, OSError) as error:
            failure = f"rank {ranks.rank}: {error}"
        failures = [text for text in ranks.allgather(failure) if text]
        if not failures and ranks.rank == 0:
            try:
                digest = self._put_manifest(common, entries, metadata, stored)
                self._report_stored(common, entries, digest, metadata)
            except (StorageError, OSError, DetcloudError) as error:
                failures = [f"rank 0: {error}"]
        failures, digest = ranks.broadcast((failures, digest))
        if failures:
            self._discard(stored)
            raise DetcloudError(_not_stored_text(common, "; ".join(failures)))
        return self._reference(common, digest)

    def _new_place(self, checkpoint_uuid: str, metadata: dict[str, Any]) -> dict[str, Any]:
        """The fields that both reports of a checkpoint have: its UUID, steps and path."""
        spec = self._spec
        return {
            "uuid": checkpoint_uuid,
            "steps_completed": metadata.get("steps_completed", 0),
            "path": f"{spec.experiment_id}/{spec.trial_id}/{spec.epoch}/{checkpoint_uuid}",
        }

    def _report_stored(
        self,
        common: dict[str, Any],
        entries: Entries,
        digest: str,
        metadata: dict[str, Any],
    ) -> None:
        # Of a validation that came before: training may have had others since.
        metric = self._metric_at(common["steps_completed"])
        self._report(
            "checkpoint",
            **common,
            manifest_sha256=digest,
            size_bytes=sum(entry["size"] for entry in entries.values()),
            files=len(entries),
            metadata=metadata,
            **({} if metric is None else {"metric": metric}),
        )

    def _put_metadata(
        self, common: dict[str, Any], metadata: dict[str, Any], stored: list[str]
    ) -> dict[str, dict[str, Any]]:
        """Store the metadata; their entry of the manifest."""
        with make_temporary_folder("detcloud-document-") as folder:
            document = write_document(folder, METADATA, metadata)
            return {METADATA: self._put(common["path"], METADATA, document, stored)}

    def _put_manifest(
        self, common: dict[str, Any], entries: Entries, metadata: dict[str, Any], stored: list[str]
    ) -> str:
        """Store the manifest, which completes the checkpoint; its SHA-256."""
        spec = self._spec
        manifest = manifest_content(
            common["uuid"],
            spec.cluster_id,
            spec.trial_id,
            common["steps_completed"],
            entries,
            metadata,
        )
        with make_temporary_folder("detcloud-document-") as folder:
            document = write_document(folder, MANIFEST, manifest)
            digest: str = self._put(common["path"], MANIFEST, document, stored)["sha256"]
            return digest

    def _put(self, path: str, name: str, source: Path, stored: list[str]) -> dict[str, Any]:
        """Store a file and add its key to `stored`; its entry of the manifest.

        A file that is written on meanwhile is stored again. Raises StorageError.
        """
        key = f"{path}/{name}"
        for _ in range(PUTS_MAX):
            before = file_stamp(source)
            self._store.put(key, source)
            stored.append(key)
            size, digest = size_and_sha256(source)
            if file_stamp(source) == before:
                return {"size": size, "sha256": digest}
            self._store.delete(key)
            stored.remove(key)
        raise StorageError(
            f"{name} was modified each of {PUTS_MAX} times that it was stored: store a copy of "
            "what is still being written"
        )

    def _discard(self, stored: list[str]) -> None:
        """Delete what was stored of a checkpoint that is not to be, up to the first that cannot be
        deleted: a store that does not answer would be asked for minutes for each. The collector
        deletes what is left.
        """
        with suppress(StorageError):
            for key in stored:
                self._store.delete(key)

    def _reference(self, common: dict[str, Any], digest: str) -> CheckpointReference:
        return CheckpointReference(
            common["uuid"], self._spec.trial_id, common["path"], common["steps_completed"], digest
        )


def files_to_store(
    folder: Path, selector: Selector | None, *, follows_links: bool = False
) -> dict[str, Path]:
    """The wanted files of a folder by their relative path; with `follows_links` of a link the file
    that it leads to.

    Raises DetcloudError for another link or a special file among them, a folder that cannot be
    read, or too many.
    """
    files = {}
    for path in sorted(_paths_below(folder)):
        name = path.relative_to(folder).as_posix()
        if selector is not None and not selector(name):
            continue
        source = Path(os.path.realpath(path)) if follows_links else path
        if source.is_symlink() or not source.is_file():
            raise DetcloudError(
                f"{path} is a link or a special file: a checkpoint can contain only regular files"
                + (" and links to such" if follows_links else "")
            )
        if name == MANIFEST:
            raise DetcloudError(f"{path} cannot be stored: {MANIFEST} is the checkpoint's own file")
        if name != METADATA:
            files[checked_key(name)] = source
    # The metadata are a file too.
    if len(files) + 1 > CHECKPOINT_FILES_MAX:
        raise DetcloudError(
            f"the checkpoint has {len(files)} files, the limit is {CHECKPOINT_FILES_MAX - 1}: "
            "store many small files as one, such as a tar file"
        )
    return files


def _paths_below(folder: Path) -> Iterator[Path]:
    """The paths in a folder, at any depth, that are no folders themselves; links are none."""

    def refuse(error: OSError) -> None:
        raise DetcloudError(f"{error.filename} cannot be read: {error.strerror}") from error

    for place, folders, files in os.walk(folder, onerror=refuse):
        found = (Path(place, name) for name in (*files, *folders))
        yield from (path for path in found if path.is_symlink() or not path.is_dir())


def checked_steps(metadata: dict[str, Any], *, is_needed: bool) -> dict[str, Any]:
    """The metadata, which have the number of batches, as is needed on a cluster, and are not too
    large; InvalidValue where that is not so.

    Scripts for Determined up to 0.17 call it `latest_batch`.
    """
    if "latest_batch" in metadata:
        metadata = {"steps_completed": metadata["latest_batch"], **metadata}
    steps = metadata.get("steps_completed", None if is_needed else 0)
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
        raise InvalidValue(
            f"checkpoint metadata has steps_completed {steps!r}: on a cluster it must be the "
            "number of batches completed"
        )
    size = len(json.dumps(metadata))
    if size > METADATA_BYTES_MAX:
        raise InvalidValue(
            f"checkpoint metadata have {size} bytes, the limit is {METADATA_BYTES_MAX}: store "
            "large values in a file of the checkpoint"
        )
    return metadata


def file_stamp(path: Path) -> Stamp:
    """The size of a file and the time of its last change, by which a change is noticed."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def size_and_sha256(path: Path) -> tuple[int, str]:
    """The size of a file and the SHA-256 of its content."""
    with path.open("rb") as content:
        return path.stat().st_size, hashlib.file_digest(content, "sha256").hexdigest()


def _not_stored_text(common: dict[str, Any], why: str) -> str:
    return (
        f"checkpoint {common['uuid']} at batch {common['steps_completed']} was not stored: {why}; "
        "the previous checkpoint is still the latest"
    )


def manifest_content(
    checkpoint_uuid: str,
    cluster_id: str,
    trial_id: int,
    steps: int,
    entries: Entries,
    metadata: Mapping[str, Any],
) -> dict[str, Any]:
    """The manifest of a checkpoint, whose files are `entries`: sizes and digests by name."""
    return {
        "version": 1,
        "uuid": checkpoint_uuid,
        "cluster_id": cluster_id,
        "trial_id": trial_id,
        "steps_completed": steps,
        "files": entries,
        "metadata": metadata,
    }


def write_document(folder: str, name: str, content: Mapping[str, Any]) -> Path:
    """Write a checkpoint's manifest or metadata to a file of the folder. Raises StorageError for a
    manifest that nobody would read.
    """
    path = Path(folder) / name
    with translate_errors(f"writing {path}"):
        path.write_text(json.dumps(content, indent=1, sort_keys=True), encoding="utf-8")
    if name == MANIFEST and (size := path.stat().st_size) > MANIFEST_BYTES_MAX:
        raise StorageError(
            f"{MANIFEST} has {size} bytes, the limit is {MANIFEST_BYTES_MAX}: store fewer files or "
            "shorter names"
        )
    return path
