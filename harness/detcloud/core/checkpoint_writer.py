"""The writer of checkpoints: announce, store the files, complete by a manifest, report."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from detcloud.core.distributed_context import DistributedContext
from detcloud.core.temporary_folder import make_temporary_folder
from detcloud.shared.checkpoint_limits import (
    CHECKPOINT_FILES_MAX,
    MANIFEST,
    MANIFEST_BYTES_MAX,
)
from detcloud.shared.errors import DetcloudError, InvalidValue
from detcloud.shared.files import sha256_of
from detcloud.shared.report_file import LINE_BYTES_MAX
from detcloud.shared.trial_directory import CheckpointReference, Reporter, TrialSpec
from detcloud.storage import (
    CheckpointStore,
    KeyExists,
    StorageError,
    StoreReplaced,
    checked_key,
)
from detcloud.storage.store import translate_errors

METADATA = "metadata.json"
# The report line that contains the metadata needs room for other fields.
METADATA_BYTES_MAX = LINE_BYTES_MAX - 16 * 1024
# The number of attempts to store a file that changes during the transfer.
PUTS_MAX = 3
# The number of attempts to store a checkpoint whose store is replaced meanwhile.
STORES_MAX = 3
T = TypeVar("T")
Entries = Mapping[str, Mapping[str, Any]]

Stamp = tuple[int, int]

Selector = Callable[[str], bool]
"""A function that returns whether a file is wanted, given the file's path within the checkpoint."""

MetricAt = Callable[[int], float | None]
"""A function that returns this process's searcher metric at a batch, or None if it is unknown."""

Check = Callable[[], None]
"""A function that raises StorageError if files have changed while they were stored."""


class CheckpointWriter:
    """Writes the checkpoints of a trial into `store`, with reports in the trial's report file.

    `metric_at` returns the validation metric that is reported with a checkpoint.
    """

    def __init__(
        self,
        spec: TrialSpec,
        store: CheckpointStore,
        report: Reporter,
        metric_at: MetricAt = lambda _: None,
    ) -> None:
        """Create the writer of the checkpoints of `spec`. Store and report nothing yet."""
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
        """Store `files` as a checkpoint with a manifest, and return the checkpoint's reference.

        `files` maps names in the checkpoint to paths. Report `checkpoint_intent` before and
        `checkpoint` after the files are stored. Before the manifest is stored, `check` may raise
        StorageError. If the store was replaced meanwhile, store all files again.

        If a file cannot be stored, delete the stored files and raise DetcloudError. A failed report
        also raises DetcloudError; a checkpoint whose last report fails keeps its files.
        """
        common, stored = self._new_place(checkpoint_uuid, metadata), list[str]()
        self._report("checkpoint_intent", **common)

        def store() -> tuple[Entries, str]:
            entries = self._put_metadata(common, metadata, stored)
            for name, source in files.items():
                entries[name] = self._put(common["path"], name, source, stored)
            check()
            return entries, self._put_manifest(common, entries, metadata, stored)

        try:
            entries, digest = _repeat_if_replaced(store)
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
        """Store this rank's `files` of a checkpoint, and return the checkpoint's reference.

        Every rank of `ranks` must call this. `entries` are the manifest entries of all ranks'
        files. Rank 0 stores the manifest and reports the checkpoint after all ranks have stored
        their files. Before that, `check` may raise StorageError. If the store of a rank was
        replaced meanwhile, all ranks store their files again.

        If a rank fails, every rank deletes its stored files and raises DetcloudError.
        """
        common, stored = self._new_place(checkpoint_uuid, metadata), list[str]()
        self._report("checkpoint_intent", **common)
        # No rank may store a file before the chief has announced the checkpoint.
        ranks.broadcast(None)
        digest, stored_files = "", dict(entries)

        def store() -> None:
            if ranks.rank == 0:
                stored_files.update(self._put_metadata(common, metadata, stored))
            for name, source in files.items():
                if self._put(common["path"], name, source, stored) != entries[name]:
                    raise StorageError(f"{name} was modified while the ranks agreed on it")
            check()

        failures = _store_on_all_ranks(ranks, store)
        if not failures and ranks.rank == 0:
            try:
                digest = self._put_manifest(common, stored_files, metadata, stored)
                self._report_stored(common, stored_files, digest, metadata)
            except (StorageError, OSError, DetcloudError) as error:
                failures = [f"rank 0: {error}"]
        failures, digest = ranks.broadcast((failures, digest))
        if failures:
            self._discard(stored)
            raise DetcloudError(_not_stored_text(common, "; ".join(failures)))
        return self._reference(common, digest)

    def _new_place(self, checkpoint_uuid: str, metadata: dict[str, Any]) -> dict[str, Any]:
        """Return the fields that both reports of a checkpoint share: UUID, completed batches and
        path.
        """
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
        """Report a stored checkpoint, with the searcher metric at that batch if known.

        `common` are the fields of all reports of this checkpoint, `digest` the SHA-256 of the
        manifest. Raises DetcloudError if the report cannot be written.
        """
        # A background save may end after later validations, so the metric is looked up by batch.
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
        """Store the metadata as a file, add the key to `stored`, and return the manifest entry by
        name.

        Raises StorageError if the file cannot be stored, and OSError if no temporary folder can be
        created.
        """
        with make_temporary_folder("detcloud-document-") as folder:
            document = write_document(folder, METADATA, metadata)
            return {METADATA: self._put(common["path"], METADATA, document, stored)}

    def _put_manifest(
        self, common: dict[str, Any], entries: Entries, metadata: dict[str, Any], stored: list[str]
    ) -> str:
        """Store the manifest, which completes the checkpoint, and return the manifest's SHA-256.

        `common` are the fields of all reports of this checkpoint. Afterwards, add the manifest's
        key to `stored`. Raises StorageError if the manifest is too large or cannot be stored, and
        OSError if no temporary folder can be created.
        """
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
        """Store a file, add the key to `stored`, and return the manifest entry.

        A file that changes during the transfer is deleted from the store and stored again. Raises
        StorageError after PUTS_MAX such attempts, or if the store fails. A key in `stored` that
        exists already is the file of an attempt before the store was replaced.
        """
        key = f"{path}/{name}"
        for _ in range(PUTS_MAX):
            before = file_stamp(source)
            try:
                self._store.put(key, source)
            except KeyExists:
                if key not in stored:
                    raise
            if key not in stored:
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
        """Delete the stored files of a failed checkpoint, and stop at the first failed deletion.

        A store that does not respond would delay each deletion by minutes. The collector deletes
        the rest.
        """
        with suppress(StorageError):
            for key in stored:
                self._store.delete(key)

    def _reference(self, common: dict[str, Any], digest: str) -> CheckpointReference:
        """Return the reference of the checkpoint; `digest` is the manifest's SHA-256."""
        return CheckpointReference(
            common["uuid"], self._spec.trial_id, common["path"], common["steps_completed"], digest
        )


def _repeat_if_replaced(store: Callable[[], T]) -> T:
    """Return the result of `store`, which stores the files of a checkpoint.

    Call `store` again if it raises StoreReplaced, up to STORES_MAX times in total. Pass on the last
    StoreReplaced and all other exceptions.
    """
    for _ in range(STORES_MAX - 1):
        with suppress(StoreReplaced):
            return store()
    return store()


def _store_on_all_ranks(ranks: DistributedContext, store: Callable[[], None]) -> list[str]:
    """Call `store` on every rank, and return the failures of all ranks. Every rank must call this.

    If `store` raises StoreReplaced on a rank, every rank calls `store` again, up to STORES_MAX
    times in total. StorageError and OSError become failures.
    """
    for attempt in range(1, STORES_MAX + 1):
        failure, is_replaced = "", False
        try:
            store()
        except (StorageError, OSError) as error:
            is_replaced = isinstance(error, StoreReplaced) and attempt < STORES_MAX
            failure = "" if is_replaced else f"rank {ranks.rank}: {error}"
        outcomes = ranks.allgather((failure, is_replaced))
        failures = [text for text, _ in outcomes if text]
        if failures or not any(replaced for _, replaced in outcomes):
            break
    return failures


def files_to_store(
    folder: Path, selector: Selector | None, *, follows_links: bool = False
) -> dict[str, Path]:
    """Return the files below `folder` by relative path, or only the files that `selector` accepts.

    A file of the name `metadata.json` at the top is left out, since each checkpoint has its own.
    With `follows_links`, a link counts as the file that it points to.

    Raises DetcloudError for any other link or special file, a file with the manifest's name, an
    unreadable folder, or too many files. Raises StorageError for an invalid name.
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
    # The metadata file counts as well.
    if len(files) + 1 > CHECKPOINT_FILES_MAX:
        raise DetcloudError(
            f"the checkpoint has {len(files)} files, the limit is {CHECKPOINT_FILES_MAX - 1}: "
            "store many small files as one, such as a tar file"
        )
    return files


def _paths_below(folder: Path) -> Iterator[Path]:
    """Yield the paths of files and links below `folder`, at any depth, in no particular order.

    Each path begins with `folder`. Links, also to folders, are yielded and not followed.

    Raises DetcloudError for a folder that cannot be read, also if `folder` does not exist.
    """

    def refuse(error: OSError) -> None:
        raise DetcloudError(f"{error.filename} cannot be read: {error.strerror}") from error

    for place, folders, files in os.walk(folder, onerror=refuse):
        yield from (Path(place, name) for name in files)
        for path in (Path(place, name) for name in folders):
            # `Path.is_symlink` raises OSError for a path that is too long. Reading the folder
            # refuses such a path.
            if os.path.islink(path):  # noqa: PTH114
                yield path


def checked_steps(metadata: dict[str, Any], *, is_needed: bool) -> dict[str, Any]:
    """Return the metadata. Add `steps_completed` if only the old name `latest_batch` is present.

    Scripts for Determined up to 0.17 use the old name. Raises InvalidValue if `steps_completed` is
    not a count of batches, or missing although `is_needed`. Raises InvalidValue if the metadata
    exceeds METADATA_BYTES_MAX as JSON.
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
    """Return the size of a file in bytes and the time of the last change in nanoseconds."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def size_and_sha256(path: Path) -> tuple[int, str]:
    """Return the size of a file in bytes and the content's SHA-256 in hexadecimal digits."""
    return path.stat().st_size, sha256_of(path)


def _not_stored_text(common: dict[str, Any], why: str) -> str:
    """Return the message of a failed checkpoint, with the reason `why`."""
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
    """Return the content of a checkpoint's manifest.

    `entries` maps each file's name to its size and digest. `steps` is the number of completed
    batches.
    """
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
    """Write `content` as JSON to the file `name` of `folder`, and return the file's path.

    Raises StorageError if the file cannot be written, or if a manifest exceeds MANIFEST_BYTES_MAX.
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
