"""Checkpoints: written in two phases, fenced by the epoch in the path, verified when restored."""

from __future__ import annotations

import contextlib
import copy
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any

from detcloud.core.background_save import BackgroundSave, Save
from detcloud.core.checkpoint_loading import LoadWatch
from detcloud.core.checkpoint_reader import CheckpointDamaged, CheckpointReader, report_damage
from detcloud.core.checkpoint_selection import SelectionAnswer, common_selector
from detcloud.core.checkpoint_sources import (
    Sources,
    describe_shard,
    link_sources,
    list_sources,
    try_to_take,
)
from detcloud.core.checkpoint_writer import (
    CheckpointWriter,
    MetricAt,
    Selector,
    checked_steps,
)
from detcloud.core.distributed_context import DistributedContext
from detcloud.core.shards import Shard, assign_files, manifest_entries, merge_metadata
from detcloud.core.temporary_folder import make_temporary_folder
from detcloud.shared.checkpoint_limits import MANIFEST
from detcloud.shared.errors import DetcloudError, InvalidCall
from detcloud.shared.json_values import to_json_value
from detcloud.shared.parameter_names import accept_names
from detcloud.shared.trial_directory import (
    CheckpointReference,
    Reporter,
    TrialSpec,
)
from detcloud.storage import CheckpointStore, KeyExists


class DownloadMode(Enum):
    """The ranks that download a checkpoint: each node's first rank for the node, or every rank."""

    LocalWorkersShareDownload = "LOCAL_WORKERS_SHARE_DOWNLOAD"
    NoSharedDownload = "NO_SHARED_DOWNLOAD"


class CheckpointContext:
    """Stores and restores the checkpoints of a trial.

    On a cluster, a UUID must name the checkpoint from which the run began, or one that the run
    stored. A CheckpointReference may name any checkpoint. If checkpoint storage is disabled, new
    checkpoints are discarded with a warning in the log, and reading a checkpoint raises
    DetcloudError.
    """

    def __init__(
        self,
        spec: TrialSpec,
        store: CheckpointStore | None,
        report: Reporter,
        *,
        on_cluster: bool,
        distributed: DistributedContext | None = None,
        metric_at: MetricAt = lambda _: None,
    ) -> None:
        """Create the context. A `store` of None disables checkpoint storage."""
        self._distributed = distributed or DistributedContext()
        self._spec = spec
        self._store = store
        self._report = report
        self._on_cluster = on_cluster
        self._metric_at = metric_at
        self.saves = BackgroundSave()
        is_chief = self._distributed.rank == 0
        self.loading = LoadWatch(
            spec.latest_checkpoint, report, is_reporting=on_cluster and is_chief
        )
        self._known: dict[str, CheckpointReference] = {}
        if spec.latest_checkpoint is not None:
            self._known[spec.latest_checkpoint.uuid] = spec.latest_checkpoint

    @contextmanager
    def store_path(
        self,
        metadata: dict[str, Any] | None = None,
        *,
        shard: bool = False,
        asynchronous: bool = False,
    ) -> Iterator[tuple[Path, str]]:
        """Yield an empty folder and the new checkpoint's UUID; store the files at the block's end.

        `metadata` is plain JSON data. On a cluster it must contain `steps_completed`, the number of
        completed batches. Without `shard` only the chief may call this. With `shard` every rank
        calls this and fills its own folder; files and metadata of all ranks become one checkpoint.

        With `asynchronous`, a thread stores the files after the block. The next call that stores,
        reports or waits, or the end of `core.init`, then raises an error of the save. Saves run one
        at a time. `operation.complete` waits for the save. If the block raises, nothing is stored.

        Raises InvalidCall on a rank that may not store, and InvalidValue for invalid
        `steps_completed` or too large metadata. Raises DetcloudError if storing fails, with `shard`
        on every rank. Earlier checkpoints stay valid.
        """
        self.wait()
        if shard and self._distributed.size > 1:
            with self._store_own_shard(metadata, asynchronous) as place:
                yield place
            return
        checked = self._checked_metadata(metadata)
        save = Save(str(uuid.uuid4()))

        def store(folder: Path) -> None:
            self._store_sources(list_sources(folder), save, checked)

        with self._filled_folder(save, store, asynchronous) as folder:
            yield folder, save.uuid

    def store_behind(
        self, write: Callable[[Path], None], metadata: dict[str, Any], bytes_expected: int = 0
    ) -> str:
        """Fill an empty folder by `write` and store the files, both in a background thread.

        Return the new checkpoint's UUID at once. `write` must not use data that the caller changes
        later. `bytes_expected` is the expected size. Otherwise as `store_path` with `asynchronous`.
        """
        self.wait()
        checked = self._checked_metadata(metadata)
        save = Save(str(uuid.uuid4()), bytes_expected)

        def task() -> None:
            with make_temporary_folder("detcloud-checkpoint-") as folder:
                write(Path(folder))
                self._store_sources(list_sources(Path(folder)), save, checked)

        self.saves.start(save, task)
        return save.uuid

    def wait(self) -> None:
        """Wait for the checkpoint that is stored in the background, if any. Raise its
        error, once.
        """
        self.saves.wait()

    def finish(self) -> Exception | None:
        """Wait as `wait` does. Print and return the error, or return None without an error."""
        try:
            self.saves.wait()
        except Exception as error:
            print(f"[detcloud] {error}", file=sys.stderr, flush=True)
            return error
        return None

    @accept_names(ckpt_dir="directory")
    def upload(
        self,
        directory: str | Path | None,
        metadata: dict[str, Any] | None = None,
        *,
        shard: bool = False,
        selector: Selector | None = None,
        asynchronous: bool = False,
        growing: Selector | None = None,
    ) -> str:
        """Store the files of `directory` as a checkpoint and return the checkpoint's UUID.

        Store all files, or only those that `selector` accepts by relative path. Links count as
        their targets. `metadata`, `shard`, `asynchronous` and errors are as for `store_path`. A
        rank without files of a sharded checkpoint passes None as `directory`.

        With `asynchronous`, files may be deleted or replaced after the return. A file that is
        modified in place fails the checkpoint, unless `growing` accepts the file, such as a log: it
        is then copied.

        Raises InvalidCall if `directory` is None without `shard`, with a `selector`, or on all
        ranks. Raises DetcloudError if `directory` is no directory or contains a special file.
        """
        if directory is None and selector is not None:
            raise InvalidCall("upload got a selector and no directory to select from")

        def take() -> Sources:
            if directory is None:
                return Sources(is_none=True)
            if asynchronous:
                return link_sources(Path(directory), selector, growing, self._spec)
            return list_sources(Path(directory), selector)

        self.wait()
        run = self.saves.start if asynchronous else self.saves.run
        if shard and self._distributed.size > 1:
            save = Save(self._distributed.broadcast(str(uuid.uuid4())))
            ranks = self._distributed.background_context() if asynchronous else self._distributed
            shared, own = try_to_take(take), copy.deepcopy(metadata)
            run(save, lambda: self._store_shard(save, shared, own, ranks))
            return save.uuid
        if directory is None:
            raise InvalidCall("upload needs a directory, but on some ranks of a sharded checkpoint")
        checked, save = self._checked_metadata(metadata), Save(str(uuid.uuid4()))
        sources = take()
        run(save, lambda: self._store_sources(sources, save, checked))
        return save.uuid

    @accept_names(storage_id="checkpoint")
    @contextmanager
    def restore_path(
        self,
        checkpoint: str | CheckpointReference,
        download_mode: DownloadMode = DownloadMode.LocalWorkersShareDownload,
        *,
        selector: Selector | None = None,
    ) -> Iterator[Path]:
        """Yield a folder with a checkpoint's verified files; delete the folder at the block's end.

        Fetch all files, or only those that `selector` accepts by name. By default every rank of a
        node must call this. The node's first rank then fetches the files that any of them selects,
        and deletes the folder after all have left the block. With `NoSharedDownload` each rank has
        its own folder. Errors are as for `download`. An exception that leaves the block on the
        chief counts as a load failure of the checkpoint if the run began from it.
        """
        ranks = self._sharing_ranks(download_mode)
        if ranks is None or ranks.local_rank == 0:
            with make_temporary_folder("detcloud-checkpoint-") as folder:
                self._fetch(checkpoint, Path(folder), selector, ranks)
                try:
                    with self.loading.watch(checkpoint):
                        yield Path(folder)
                finally:
                    if ranks is not None:
                        ranks.allgather_local(None)
            return
        fetched = self._await_fetched(ranks, selector)
        try:
            yield fetched
        finally:
            ranks.allgather_local(None)

    @accept_names(storage_id="checkpoint", ckpt_dir="directory")
    def download(
        self,
        checkpoint: str | CheckpointReference,
        directory: str | Path,
        download_mode: DownloadMode = DownloadMode.LocalWorkersShareDownload,
        *,
        selector: Selector | None = None,
    ) -> None:
        """Copy a checkpoint's files into `directory`, replacing existing files, and verify the
        copies.

        `selector` and `download_mode` are as for `restore_path`. If ranks share the download, only
        the `directory` of the node's first rank is used. Raises DetcloudError if the checkpoint is
        unknown or storage is disabled. Raises StorageError if the store fails, and
        CheckpointDamaged if files are missing or differ.
        """
        ranks = self._sharing_ranks(download_mode)
        if ranks is None or ranks.local_rank == 0:
            self._fetch(checkpoint, Path(directory), selector, ranks)
        else:
            self._await_fetched(ranks, selector)

    def _sharing_ranks(self, mode: DownloadMode) -> DistributedContext | None:
        """Return the trial's processes if each node shares a download. Return None otherwise."""
        ranks = self._distributed
        shares = DownloadMode(mode) is DownloadMode.LocalWorkersShareDownload
        shares = shares and ranks.local_size > 1
        return ranks if shares and ranks.can_exchange else None

    def _fetch(
        self,
        checkpoint: str | CheckpointReference,
        root: Path,
        selector: Selector | None,
        ranks: DistributedContext | None,
    ) -> None:
        """Copy the files, then send the waiting ranks of the node the folder or the error."""
        try:
            with self._open_reader(checkpoint) as reader:
                if ranks is not None:
                    selector = common_selector(ranks, selector, reader.file_names)
                reader.copy_files(root, selector)
        except Exception as error:
            if ranks is not None:
                ranks.broadcast_local(("failed", str(error)))
            raise
        if ranks is not None:
            ranks.broadcast_local(("fetched", str(root)))

    def _await_fetched(self, ranks: DistributedContext, selector: Selector | None) -> Path:
        """Answer the node's first rank until the files are fetched, and return the folder."""
        selection = SelectionAnswer(ranks, selector)
        while True:
            message: tuple[str, Any] = ranks.broadcast_local(("", None))
            kind, value = message
            if kind == "fetched":
                return Path(value)
            if kind == "failed":
                text = f"the first process of this node could not fetch it: {value}"
                raise selection.error or DetcloudError(text)
            selection.answer(kind, value)

    @accept_names(storage_id="checkpoint")
    def delete(self, checkpoint: str | CheckpointReference) -> None:
        """Delete a checkpoint's files without a cluster. An unknown checkpoint is no error.

        Raises DetcloudError on a cluster, where `checkpoint_storage.save_*` and `detcloud
        checkpoint delete` decide, so that the cluster's record is deleted too.
        """
        reference = self._resolve_checkpoint(checkpoint)
        if self._on_cluster:
            raise DetcloudError(
                f"checkpoint {reference.uuid} cannot be deleted by its trial: use `detcloud "
                "checkpoint delete`, or save_trial_latest and its like in the configuration"
            )
        store = self._open_store()
        # A checkpoint without a manifest does not exist, even if a later deletion fails.
        store.delete(f"{reference.path}/{MANIFEST}")
        for key in store.list(reference.path):
            store.delete(key)
        self._known.pop(reference.uuid, None)

    def store_output(self, key: str, source: Path) -> bool:
        """Store a file that belongs to no checkpoint. Return False if a file exists under `key`.

        `key` must be below `EXPERIMENT/TRIAL/RUN/outputs`, where only this run may write. The file
        stays until a user deletes it. If storage is disabled, return True. Raises StorageError.
        """
        if self._store is None:
            return True
        try:
            self._store.put(key, source)
        except KeyExists:
            return False
        return True

    @property
    def is_on_disk(self) -> bool:
        """Whether checkpoints are stored in a folder of this machine, or storage is disabled."""
        return self._store is None or self._store.root is not None

    def output_place(self, key: str) -> str:
        """Return a text for the log that names the place of the output stored under `key`."""
        if self._store is None:
            return "nowhere: checkpoint storage is disabled"
        root = self._store.root
        return f"{key} of the checkpoint storage" if root is None else str(root / key)

    @accept_names(storage_id="checkpoint")
    def get_metadata(self, checkpoint: str | CheckpointReference) -> dict[str, Any]:
        """Return the metadata of a checkpoint. Errors are as for `download`."""
        with self._open_reader(checkpoint) as reader:
            metadata: dict[str, Any] = reader.read_manifest()["metadata"]
        return metadata

    @contextmanager
    def _store_own_shard(
        self, metadata: dict[str, Any] | None, asynchronous: bool
    ) -> Iterator[tuple[Path, str]]:
        save = Save(self._distributed.broadcast(str(uuid.uuid4())))
        # Training exchanges values during the save, so the save needs separate connections.
        ranks = self._distributed.background_context() if asynchronous else self._distributed
        run = self.saves.start if asynchronous else self.saves.run
        own: dict[str, Any] = {}

        def store(folder: Path) -> None:
            filled = try_to_take(lambda: list_sources(folder))
            self._store_shard(save, filled, own["metadata"], ranks)

        try:
            with self._filled_folder(save, store, asynchronous) as folder:
                yield folder, save.uuid
                # The caller may change the metadata while the save runs in the background.
                own["metadata"] = copy.deepcopy(metadata)
        except Exception as error:
            if "metadata" in own:
                raise
            # Without this message every other rank would wait for this rank's shard.
            failure = Shard(failure=f"{type(error).__name__}: {error}")

            def tell() -> None:
                ranks.allgather(failure)

            run(save, tell)
            raise

    @contextmanager
    def _filled_folder(
        self, save: Save, store: Callable[[Path], None], asynchronous: bool
    ) -> Iterator[Path]:
        """Yield a folder to fill. Store and delete it afterwards, in a thread if `asynchronous`."""
        folder = make_temporary_folder("detcloud-checkpoint-")
        with contextlib.ExitStack() as unless_filled:
            unless_filled.callback(folder.cleanup)
            yield Path(folder.name)
            unless_filled.pop_all()

        def task() -> None:
            with folder as place:
                store(Path(place))

        # The store's rate must not include the time of filling the folder.
        save.began = time.monotonic()
        (self.saves.start if asynchronous else self.saves.run)(save, task)

    def _store_shard(
        self,
        save: Save,
        sources: Sources,
        metadata: dict[str, Any] | None,
        ranks: DistributedContext,
    ) -> None:
        """Store this rank's files of a checkpoint, together with all other ranks of `ranks`."""
        with contextlib.closing(sources):
            shards = ranks.allgather(describe_shard(sources, metadata))
            owners = assign_files(shards)
            merged = checked_steps(merge_metadata(shards), is_needed=self._on_cluster)
            if self._store is None:
                _warn_of_disabled_storage()
                return
            own = [name for name, rank in owners.items() if rank == ranks.rank]
            entries = manifest_entries(shards, owners)
            save.bytes_total = max(1, sum(entry["size"] for entry in entries.values()))
            self._known[save.uuid] = self._writer(self._store).store_shard(
                save.uuid,
                ranks,
                {name: sources.files[name] for name in own},
                entries,
                merged,
                sources.check_unchanged,
            )

    def _checked_metadata(self, metadata: dict[str, Any] | None) -> dict[str, Any]:
        """Return the metadata as JSON data. Raises InvalidCall on ranks other than the chief."""
        if self._distributed.rank and self._distributed.can_exchange:
            raise InvalidCall(
                f"rank {self._distributed.rank} cannot store a checkpoint, only the chief "
                "can: call store_path or upload on rank 0 alone, or with shard=True on every rank"
            )
        checked = to_json_value(metadata or {}, "metadata")
        return checked_steps(checked, is_needed=self._on_cluster)

    def _store_sources(self, sources: Sources, save: Save, metadata: dict[str, Any]) -> None:
        with contextlib.closing(sources):
            if self._store is None:
                _warn_of_disabled_storage()
                return
            files = sources.files
            save.bytes_total = max(1, sum(path.stat().st_size for path in files.values()))
            self._known[save.uuid] = self._writer(self._store).store_files(
                save.uuid, files, metadata, sources.check_unchanged
            )

    def _writer(self, store: CheckpointStore) -> CheckpointWriter:
        return CheckpointWriter(self._spec, store, self._report, self._metric_at)

    def _open_store(self) -> CheckpointStore:
        if self._store is None:
            raise DetcloudError("checkpoint storage is disabled: there is nothing to restore from")
        return self._store

    @contextmanager
    def _open_reader(self, checkpoint: str | CheckpointReference) -> Iterator[CheckpointReader]:
        """Yield a reader of the checkpoint. Report damage of the run's first checkpoint."""
        reader = CheckpointReader(self._open_store(), self._resolve_checkpoint(checkpoint))
        try:
            yield reader
        except CheckpointDamaged as damage:
            latest = self._spec.latest_checkpoint
            is_latest = latest is not None and latest.uuid == reader.reference.uuid
            if is_latest and self._on_cluster and self._distributed.rank == 0:
                report_damage(damage, reader.reference, self._report)
            raise

    def _resolve_checkpoint(self, checkpoint: str | CheckpointReference) -> CheckpointReference:
        """Return the checkpoint's reference; wait for its save. Raises DetcloudError if unknown."""
        if isinstance(checkpoint, CheckpointReference):
            return checkpoint
        if (running := self.saves.running) is not None and running.uuid == checkpoint:
            self.wait()
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


def _warn_of_disabled_storage() -> None:
    text = "[detcloud] checkpoint storage is disabled: this checkpoint is discarded"
    print(text, file=sys.stderr)
