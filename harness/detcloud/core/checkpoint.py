"""Checkpoints: written in two phases, fenced by the epoch in the path, verified when restored."""

from __future__ import annotations

import copy
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from detcloud.core.background_save import BackgroundSave, Save
from detcloud.core.checkpoint_catalog import CheckpointCatalog
from detcloud.core.checkpoint_loading import LoadWatch
from detcloud.core.checkpoint_reader import CheckpointReader
from detcloud.core.checkpoint_saver import CheckpointSaver
from detcloud.core.checkpoint_sources import (
    Sources,
    link_sources,
    list_sources,
    try_to_take,
)
from detcloud.core.checkpoint_writer import (
    CheckpointWriter,
    MetricAt,
    Selector,
)
from detcloud.core.distributed_context import DistributedContext
from detcloud.core.first_step import FirstStep
from detcloud.core.shared_download import DownloadMode, await_fetched, fetch, sharing_ranks
from detcloud.core.temporary_folder import make_temporary_folder
from detcloud.shared.checkpoint_limits import MANIFEST
from detcloud.shared.errors import DetcloudError, InvalidCall
from detcloud.shared.parameter_names import accept_names
from detcloud.shared.trial_directory import (
    CheckpointReference,
    Reporter,
    TrialSpec,
)
from detcloud.storage import CheckpointStore, KeyExists


class CheckpointContext:
    """Stores and restores the checkpoints of a trial.

    On a cluster, a UUID must name the checkpoint from which the run began, or a checkpoint that the
    run stored. A CheckpointReference may name any checkpoint. If checkpoint storage is disabled,
    new checkpoints are discarded with a warning in the log, and reading a checkpoint raises
    DetcloudError.

    **Background.** Only one checkpoint is stored at a time. With `asynchronous=True`, a thread
    stores the files. The next checkpoint, `operation.complete`, `wait` and the end of `core.init`
    wait for the thread. An error of the thread is raised by the next call that stores, reports or
    waits.

    **Shards.** With `shard=True`, every rank calls `store_path` or `upload`, and the files and
    metadata of all ranks become one checkpoint. Equal files with one name are stored once.
    Different files or metadata with one name are an error on every rank, as is a failing rank. For
    a sharded model, call `torch.distributed.checkpoint.save(state, checkpoint_id=folder)` in the
    block of every rank, and `load(state, checkpoint_id=folder)` in the block of `restore_path`.

    **Files.** Links to files are stored as the files themselves. Other links, special files, and
    names with control characters, broken Unicode or parts of more than 255 bytes are errors. Empty
    folders are not stored.
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
        first_step: FirstStep | None = None,
    ) -> None:
        """Create the context. A `store` of None disables checkpoint storage.

        `metric_at` returns the searcher's metric at a batch, for the report of a checkpoint. By
        default the process is alone. `first_step` measures restores.
        """
        self._first_step = first_step or FirstStep()
        self._distributed = distributed or DistributedContext()
        self._spec = spec
        self._store = store
        self._on_cluster = on_cluster
        self.saves = BackgroundSave()
        is_chief = self._distributed.rank == 0
        self.loading = LoadWatch(
            spec.latest_checkpoint,
            report,
            is_reporting=on_cluster and is_chief,
            first_step=self._first_step,
        )
        self._catalog = CheckpointCatalog(
            spec, store, report, on_cluster=on_cluster, is_chief=is_chief
        )
        writer = None if store is None else CheckpointWriter(spec, store, report, metric_at)
        self._saver = CheckpointSaver(
            writer, self._catalog, self.saves, self._distributed, on_cluster=on_cluster
        )

    @contextmanager
    def store_path(
        self,
        metadata: dict[str, Any] | None = None,
        *,
        shard: bool = False,
        asynchronous: bool = False,
    ) -> Iterator[tuple[Path, str]]:
        """Yield an empty folder and the new checkpoint's UUID; store the files at the block's end.

        If the block raises, nothing is stored. Without `shard`, only the chief may call this. First
        wait for an earlier background checkpoint, and raise its error. If storage is disabled,
        print a warning and store nothing. After an error, earlier checkpoints stay valid.

        Args:
            metadata: JSON data. On a cluster, it must contain `steps_completed`, the number of
                batches since the trial's start.
            shard: whether the files of all ranks form one checkpoint.
            asynchronous: whether a thread stores the files after the block.

        Raises:
            InvalidCall: this rank may not store, or ranks have different files or metadata of one
                name.
            InvalidValue: `steps_completed` is invalid, or the metadata is too large.
            DetcloudError: the metadata is no JSON, or storing or a report fails.
        """
        self.wait()
        if shard and self._distributed.size > 1:
            with self._saver.store_own_shard(metadata, asynchronous) as place:
                yield place
            return
        checked = self._saver.checked_metadata(metadata)
        save = Save(str(uuid.uuid4()))

        def store(folder: Path) -> None:
            self._saver.store_sources(list_sources(folder), save, checked)

        with self._saver.filled_folder(save, store, asynchronous) as folder:
            yield folder, save.uuid

    def store_behind(
        self, write: Callable[[Path], None], metadata: dict[str, Any], bytes_expected: int = 0
    ) -> str:
        """Fill an empty folder by `write` and store the files, both in a background thread.

        Return the new checkpoint's UUID at once. `write` must not use data that the caller changes
        later. `bytes_expected` is the expected size, or 0. Only the chief may call this. First wait
        for an earlier background checkpoint, and raise its error. On a cluster, `metadata` must
        contain `steps_completed`.

        Raises InvalidCall on other ranks, InvalidValue for invalid `steps_completed` or too large
        metadata, and DetcloudError for metadata that is no JSON. An error of `write` or of storing
        is raised by the next call that stores, reports or waits, or at the end of `core.init`.
        """
        self.wait()
        checked = self._saver.checked_metadata(metadata)
        save = Save(str(uuid.uuid4()), bytes_expected)

        def task() -> None:
            with make_temporary_folder("detcloud-checkpoint-") as folder:
                write(Path(folder))
                self._saver.store_sources(list_sources(Path(folder)), save, checked)

        self.saves.start(save, task)
        return save.uuid

    def wait(self) -> None:
        """Wait for the checkpoint that is stored in the background, if any.

        Raises:
            DetcloudError: the background checkpoint failed. The error is raised once.
        """
        self.saves.wait()

    def finish(self) -> Exception | None:
        """Wait for a background checkpoint, if any. Print and return its error.

        Return None without an error.
        """
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
        """Store the files of an existing folder as a checkpoint, and return the checkpoint's UUID.

        Without `shard`, only the chief may call this. First wait for an earlier background
        checkpoint, and raise its error. If storage is disabled, print a warning and store nothing.

        With `asynchronous`, the folder's files may be deleted or replaced after the return. A file
        that is modified in place fails the checkpoint, unless `growing` accepts the file.

        Args:
            directory: the folder. None on a rank without files of a sharded checkpoint.
            metadata: JSON data. On a cluster, it must contain `steps_completed`, the number of
                batches since the trial's start.
            shard: whether the files of all ranks form one checkpoint.
            selector: returns for a file's relative path whether the file is stored. None: all
                files.
            asynchronous: whether a thread stores the files.
            growing: returns True for the relative paths of files that grow during an upload, such
                as logs. These files are copied first.

        Raises:
            InvalidCall: this rank may not store; `directory` is None without `shard`, with a
                `selector`, or on all ranks; or ranks have different files or metadata of one name.
            InvalidValue: `steps_completed` is invalid, or the metadata is too large.
            DetcloudError: `directory` is no folder or contains a special file, the metadata is no
                JSON, or storing or a report fails.
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
            run(save, lambda: self._saver.store_shard(save, shared, own, ranks))
            return save.uuid
        if directory is None:
            raise InvalidCall("upload needs a directory, but on some ranks of a sharded checkpoint")
        checked, save = self._saver.checked_metadata(metadata), Save(str(uuid.uuid4()))
        sources = take()
        run(save, lambda: self._saver.store_sources(sources, save, checked))
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

        By default every rank of a node must call this. The node's first rank then fetches the files
        that any of these ranks selects, and deletes the folder after all have left the block. First
        wait for a background save of this checkpoint, and raise its error.

        Damage of the run's first checkpoint is also reported. An exception that leaves the block on
        the chief is printed and reported as a load failure, if the run began from this checkpoint.

        Args:
            checkpoint: a UUID, or a reference such as `context.info.latest_checkpoint`.
            download_mode: `NoSharedDownload` gives each rank a folder of its own.
            selector: returns for a file's name whether the file is fetched. None: all files.

        Raises:
            DetcloudError: the checkpoint is unknown or storage is disabled. On ranks that wait for
                the first rank of a node, every failure is a DetcloudError.
            StorageError: the store fails.
            CheckpointDamaged: files are missing or differ. Let this error end the script: the next
                run starts from an earlier checkpoint.
        """
        ranks = sharing_ranks(self._distributed, download_mode)
        if ranks is None or ranks.local_rank == 0:
            with make_temporary_folder("detcloud-checkpoint-") as folder:
                with self._first_step.measure_restore():
                    fetch(partial(self._open_reader, checkpoint), Path(folder), selector, ranks)
                try:
                    with self.loading.watch(checkpoint):
                        yield Path(folder)
                finally:
                    if ranks is not None:
                        ranks.allgather_local(None)
            return
        fetched = await_fetched(ranks, selector)
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
        """Copy a checkpoint's files into a folder, and verify the copies.

        Existing files of the same names are replaced. By default every rank of a node must call
        this. The node's first rank then copies the files that any of these ranks selects, into its
        own `directory`. First wait for a background save of this checkpoint, and raise its error.
        Damage of the run's first checkpoint is also reported.

        Args:
            checkpoint: a UUID, or a reference such as `context.info.latest_checkpoint`.
            directory: the folder for the copies.
            download_mode: with `NoSharedDownload`, each rank copies for itself.
            selector: returns for a file's name whether the file is copied. None: all files.

        Raises:
            DetcloudError: the checkpoint is unknown or storage is disabled. On ranks that wait for
                the first rank of a node, every failure is a DetcloudError.
            StorageError: the store fails.
            CheckpointDamaged: files are missing or differ.
        """
        ranks = sharing_ranks(self._distributed, download_mode)
        if ranks is None or ranks.local_rank == 0:
            with self._first_step.measure_restore():
                fetch(partial(self._open_reader, checkpoint), Path(directory), selector, ranks)
        else:
            await_fetched(ranks, selector)

    @accept_names(storage_id="checkpoint")
    def delete(self, checkpoint: str | CheckpointReference) -> None:
        """Delete a checkpoint's files without a cluster. An unknown checkpoint is no error.

        First wait for a running save of the checkpoint. On a cluster, the settings
        `checkpoint_storage.save_*` and `detcloud checkpoint delete` decide about deletions, so that
        the cluster's record is deleted too.

        Args:
            checkpoint: a UUID or a reference.

        Raises:
            DetcloudError: the code runs on a cluster.
            StorageError: the store fails.
        """
        self._await_save(checkpoint)
        reference = self._catalog.resolve(checkpoint)
        if self._on_cluster:
            raise DetcloudError(
                f"checkpoint {reference.uuid} cannot be deleted by its trial: use `detcloud "
                "checkpoint delete`, or save_trial_latest and its like in the configuration"
            )
        store = self._catalog.open_store()
        # A checkpoint without a manifest does not exist, even if a later deletion fails.
        store.delete(f"{reference.path}/{MANIFEST}")
        for key in store.list(reference.path):
            store.delete(key)
        self._catalog.discard(reference.uuid)

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
        """Return the metadata of a checkpoint, from the manifest in the store.

        First wait for a background save of this checkpoint, and raise its error. Damage of the
        run's first checkpoint is also reported.

        Args:
            checkpoint: a UUID, or a reference such as `context.info.latest_checkpoint`.

        Raises:
            DetcloudError: the checkpoint is unknown or storage is disabled.
            StorageError: the store fails.
            CheckpointDamaged: the manifest is missing or damaged.
        """
        with self._open_reader(checkpoint) as reader:
            metadata: dict[str, Any] = reader.read_manifest()["metadata"]
        return metadata

    @contextmanager
    def _open_reader(self, checkpoint: str | CheckpointReference) -> Iterator[CheckpointReader]:
        """Wait for a running save of the checkpoint, raise its error, and yield a reader.

        Raises DetcloudError if storage is disabled, or on a cluster if the UUID is unknown. Pass on
        CheckpointDamaged from the block; damage of the run's first checkpoint is also reported.
        """
        self._await_save(checkpoint)
        with self._catalog.open_reader(checkpoint) as reader:
            yield reader

    def _await_save(self, checkpoint: str | CheckpointReference) -> None:
        """Wait for the background save of the checkpoint, and raise an error of the save.

        Do nothing if no checkpoint with this UUID is being stored.
        """
        running = self.saves.running
        if running is not None and running.uuid == checkpoint:
            self.wait()
