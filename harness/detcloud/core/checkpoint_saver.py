"""Stores the files of filled folders as checkpoints, of a single rank or of all ranks together."""

from __future__ import annotations

import contextlib
import copy
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from detcloud.core.background_save import BackgroundSave, Save
from detcloud.core.checkpoint_catalog import CheckpointCatalog
from detcloud.core.checkpoint_sources import Sources, describe_shard, list_sources, try_to_take
from detcloud.core.checkpoint_writer import CheckpointWriter, checked_steps
from detcloud.core.distributed_context import DistributedContext
from detcloud.core.shards import Shard, assign_files, manifest_entries, merge_metadata
from detcloud.core.temporary_folder import make_temporary_folder
from detcloud.shared.errors import InvalidCall
from detcloud.shared.json_values import to_json_value


class CheckpointSaver:
    """Stores files as checkpoints by `writer`, and adds new references to `catalog`.

    A `writer` of None means that checkpoint storage is disabled: a checkpoint is discarded, with a
    warning on stderr.
    """

    def __init__(
        self,
        writer: CheckpointWriter | None,
        catalog: CheckpointCatalog,
        saves: BackgroundSave,
        distributed: DistributedContext,
        *,
        on_cluster: bool,
    ) -> None:
        """Create a saver. Store nothing yet.

        `saves` runs the saves, one at a time. If `on_cluster`, the metadata of every checkpoint
        must contain `steps_completed`.
        """
        self._writer = writer
        self._catalog = catalog
        self._saves = saves
        self._distributed = distributed
        self._on_cluster = on_cluster

    @contextmanager
    def store_own_shard(
        self, metadata: dict[str, Any] | None, asynchronous: bool
    ) -> Iterator[tuple[Path, str]]:
        """Yield a folder to fill and the new checkpoint's UUID, and store this rank's files
        afterwards.

        Every rank must call this. `metadata` is copied at the block's end. With `asynchronous`, a
        thread stores the files. If the block raises, send the failure to all ranks and pass on the
        exception. The checkpoint then fails on every rank.

        The end of storing raises errors, with `asynchronous` in the thread. DetcloudError: storing
        failed on any rank. InvalidCall: ranks have different values or files of one name.
        InvalidValue: the merged metadata are invalid.
        """
        save = Save(self._distributed.broadcast(str(uuid.uuid4())))
        # Training exchanges values during the save, so the save needs separate connections.
        ranks = self._distributed.background_context() if asynchronous else self._distributed
        run = self._saves.start if asynchronous else self._saves.run
        own: dict[str, Any] = {}

        def store(folder: Path) -> None:
            filled = try_to_take(lambda: list_sources(folder))
            self.store_shard(save, filled, own["metadata"], ranks)

        try:
            with self.filled_folder(save, store, asynchronous) as folder:
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
    def filled_folder(
        self, save: Save, store: Callable[[Path], None], asynchronous: bool
    ) -> Iterator[Path]:
        """Yield a folder to fill. Afterwards `store` the folder and delete it.

        With `asynchronous`, a thread does both, and `BackgroundSave.wait` raises errors of `store`.
        If the block raises, only delete the folder.
        """
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
        (self._saves.start if asynchronous else self._saves.run)(save, task)

    def store_shard(
        self,
        save: Save,
        sources: Sources,
        metadata: dict[str, Any] | None,
        ranks: DistributedContext,
    ) -> None:
        """Store this rank's files of a checkpoint, together with all other ranks of `ranks`.

        Merge the metadata of all ranks, set the size of `save`, add the checkpoint to the catalog,
        and close `sources`. The lowest rank stores a file that several ranks have. If a rank fails,
        every rank raises DetcloudError. Different values or files of one name raise InvalidCall,
        invalid merged metadata raises InvalidValue.
        """
        with contextlib.closing(sources):
            shards = ranks.allgather(describe_shard(sources, metadata))
            owners = assign_files(shards)
            merged = checked_steps(merge_metadata(shards), is_needed=self._on_cluster)
            if self._writer is None:
                _warn_of_disabled_storage()
                return
            own = [name for name, rank in owners.items() if rank == ranks.rank]
            entries = manifest_entries(shards, owners)
            save.bytes_total = max(1, sum(entry["size"] for entry in entries.values()))
            reference = self._writer.store_shard(
                save.uuid,
                ranks,
                {name: sources.files[name] for name in own},
                entries,
                merged,
                sources.check_unchanged,
            )
            self._catalog.add(reference)

    def checked_metadata(self, metadata: dict[str, Any] | None) -> dict[str, Any]:
        """Return a copy of the metadata as JSON data, with `steps_completed` on a cluster.

        Raises InvalidCall on ranks other than the chief, DetcloudError for values that JSON lacks,
        and InvalidValue for invalid `steps_completed` or too large metadata.
        """
        if self._distributed.rank and self._distributed.can_exchange:
            raise InvalidCall(
                f"rank {self._distributed.rank} cannot store a checkpoint, only the chief "
                "can: call store_path or upload on rank 0 alone, or with shard=True on every rank"
            )
        checked = to_json_value(metadata or {}, "metadata")
        return checked_steps(checked, is_needed=self._on_cluster)

    def store_sources(self, sources: Sources, save: Save, metadata: dict[str, Any]) -> None:
        """Store the files as the checkpoint of `save`, and close `sources`.

        Set the size of `save`, and add the checkpoint to the catalog. `metadata` is a result of
        `checked_metadata`. If storage is disabled, only print a warning. Raises DetcloudError if a
        file cannot be stored or was modified, or a report fails. After a failed file, the stored
        files are deleted.
        """
        with contextlib.closing(sources):
            if self._writer is None:
                _warn_of_disabled_storage()
                return
            files = sources.files
            save.bytes_total = max(1, sum(path.stat().st_size for path in files.values()))
            reference = self._writer.store_files(
                save.uuid, files, metadata, sources.check_unchanged
            )
            self._catalog.add(reference)


def _warn_of_disabled_storage() -> None:
    """Print to stderr that the checkpoint is discarded, since checkpoint storage is disabled."""
    text = "[detcloud] checkpoint storage is disabled: this checkpoint is discarded"
    print(text, file=sys.stderr)
