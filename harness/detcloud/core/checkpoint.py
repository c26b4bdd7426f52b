"""Checkpoints: written in two phases, fenced by the epoch in their path, verified when restored."""

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
from detcloud.shared.parameter_names import accept_names
from detcloud.shared.trial_directory import (
    CheckpointReference,
    Reporter,
    TrialSpec,
    to_json_value,
)
from detcloud.storage import CheckpointStore, KeyExists


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
        metric_at: MetricAt = lambda _: None,
    ) -> None:
        """`distributed`: the trial's processes; the chief alone stores what is not sharded."""
        self._distributed = distributed or DistributedContext()
        self._spec = spec
        self._store = store
        self._report = report
        self._on_cluster = on_cluster
        self._metric_at = metric_at
        self.saves = BackgroundSave()
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
        """Yield an empty folder to fill and the new checkpoint's UUID; store it afterwards.

        `metadata` is plain JSON data; on a cluster it must have `steps_completed`, a count of
        batches. With `shard` every rank calls this, fills a folder of its own and gives metadata,
        which are merged: all files become one checkpoint. Nothing is stored or reported where a
        block raises; what fails afterwards, a full disk for one, raises DetcloudError on every rank
        and leaves the checkpoints before it as they are.

        With `asynchronous` the files are stored behind the code that follows, and what fails is
        raised by the next call that stores, reports or waits, at the latest by the end of
        `core.init`. The next checkpoint waits for this one, and so does `operation.complete`.
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
        """Fill a folder by `write` and store its files, both in a background thread.

        `write` must use nothing that the caller changes meanwhile. Returns the checkpoint's UUID;
        everything else is as for `store_path` with `asynchronous`.
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
        """Wait for the checkpoint that is stored in the background; raises what it failed with."""
        self.saves.wait()

    def finish(self) -> Exception | None:
        """Wait as `wait` does; a failure is printed and returned."""
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
        """Store the files of `directory`, all or those that `selector` takes, as a checkpoint.

        Returns its UUID; `metadata`, `shard`, `asynchronous` and errors as for `store_path`. A rank
        that has no file of a sharded checkpoint gives None.

        With `asynchronous` files may be deleted and replaced as soon as this returns. One that is
        written on in its place fails the checkpoint, unless `growing` takes it: such files, logs
        for one, are copied first.
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
        """Yield a folder with the verified files of a checkpoint; remove it afterwards.

        The ranks of a node share one, which the first of them fetches and removes once all have
        left the block: every rank calls this, and there is what the `selector` of one of them
        takes. With `NoSharedDownload` each has its own.
        """
        ranks = self._sharing_ranks(download_mode)
        if ranks is None or ranks.local_rank == 0:
            with make_temporary_folder("detcloud-checkpoint-") as folder:
                self._fetch(checkpoint, Path(folder), selector, ranks)
                try:
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
        """Copy a checkpoint's files, all or those that `selector` takes, into `directory`.

        The first rank of a node does so for all, which call this too, into its own directory and
        with the files that the `selector` of one of them takes; with `NoSharedDownload` each does
        for itself. Raises DetcloudError where it is unknown, and CheckpointDamaged where its stored
        files are not those that were written.
        """
        ranks = self._sharing_ranks(download_mode)
        if ranks is None or ranks.local_rank == 0:
            self._fetch(checkpoint, Path(directory), selector, ranks)
        else:
            self._await_fetched(ranks, selector)

    def _sharing_ranks(self, mode: DownloadMode) -> DistributedContext | None:
        """The ranks that share one download per node; None if this process downloads for itself."""
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
        """Copy the files, and tell the ranks that wait for them where they are, or what failed."""
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
        """Wait for the first rank of this node, and tell it which files are wanted here."""
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

    @property
    def is_on_disk(self) -> bool:
        """Whether checkpoints are stored in a folder of this machine, or thrown away."""
        return self._store is None or self._store.root is not None

    def output_place(self, key: str) -> str:
        """The place of stored outputs, for a line of the log."""
        if self._store is None:
            return "nowhere: checkpoint storage is disabled"
        root = self._store.root
        return f"{key} of the checkpoint storage" if root is None else str(root / key)

    @accept_names(storage_id="checkpoint")
    def get_metadata(self, checkpoint: str | CheckpointReference) -> dict[str, Any]:
        """The metadata a checkpoint was stored with."""
        with self._open_reader(checkpoint) as reader:
            metadata: dict[str, Any] = reader.read_manifest()["metadata"]
        return metadata

    @contextmanager
    def _store_own_shard(
        self, metadata: dict[str, Any] | None, asynchronous: bool
    ) -> Iterator[tuple[Path, str]]:
        save = Save(self._distributed.broadcast(str(uuid.uuid4())))
        # The training goes on to exchange values of its own.
        ranks = self._distributed.background_context() if asynchronous else self._distributed
        run = self.saves.start if asynchronous else self.saves.run
        own: dict[str, Any] = {}

        def store(folder: Path) -> None:
            filled = try_to_take(lambda: list_sources(folder))
            self._store_shard(save, filled, own["metadata"], ranks)

        try:
            with self._filled_folder(save, store, asynchronous) as folder:
                yield folder, save.uuid
                # What is stored behind the caller must not change with it.
                own["metadata"] = copy.deepcopy(metadata)
        except Exception as error:
            if "metadata" in own:
                raise
            # The others must not wait for a shard that will never come.
            failure = Shard(failure=f"{type(error).__name__}: {error}")

            def tell() -> None:
                ranks.allgather(failure)

            run(save, tell)
            raise

    @contextmanager
    def _filled_folder(
        self, save: Save, store: Callable[[Path], None], asynchronous: bool
    ) -> Iterator[Path]:
        """Yield a folder to fill; store and remove it afterwards, or behind the caller."""
        folder = make_temporary_folder("detcloud-checkpoint-")
        with contextlib.ExitStack() as unless_filled:
            unless_filled.callback(folder.cleanup)
            yield Path(folder.name)
            unless_filled.pop_all()

        def task() -> None:
            with folder as place:
                store(Path(place))

        # The time in which the caller filled the folder is not the store's.
        save.began = time.monotonic()
        (self.saves.start if asynchronous else self.saves.run)(save, task)

    def _store_shard(
        self,
        save: Save,
        sources: Sources,
        metadata: dict[str, Any] | None,
        ranks: DistributedContext,
    ) -> None:
        """Store this rank's part of a checkpoint, in step with all other ranks."""
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
        """Yield a reader of the checkpoint. Damage of the one that this run began from is reported,
        so that the next run begins from another.
        """
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
