"""A cached data set in its folder: search, check, download, build and publish.

    ID/VERSION_SPLIT/manifest-GENERATION.json   published unless present, after all shards
    ID/VERSION_SPLIT/BUILD/RANK-NUMBER.bin      the shards of an attempt to build

If several trials build at a time, the first manifest wins and the other trials use its files. Files
that no manifest names are ignored. Published files are never changed. A damaged generation is
replaced by another generation. A cache in a bucket is copied to the same files in the local folder,
where they are read.
"""

from __future__ import annotations

import fcntl
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, TYPE_CHECKING

from detcloud.core import DistributedContext
from detcloud.pytorch.data_layer.dataset import suspicion_file
from detcloud.pytorch.data_layer.manifest import DamagedManifest, Manifest
from detcloud.pytorch.data_layer.shard import DamagedShard, Shard, ShardReader, write_shards
from detcloud.shared.errors import DetcloudError
from detcloud.storage import CheckpointStore, KeyExists, KeyNotFound
from detcloud.storage.store import translate_errors

if TYPE_CHECKING:
    from typing_extensions import Buffer

FETCHED_AT_ONCE = 4
LOCK_POLL_SECONDS = 0.1
# An unpublished build of this age was killed.
ABANDONED_SECONDS = 24 * 3600

EncodeShare = Callable[[int, int], "tuple[int, Iterable[Sequence[Buffer]]]"]
"""From a rank and the number of ranks, return the source's length and the rank's samples as bytes,
in pieces.
"""


class BuildStopped(Exception):
    """Raised on every rank if a request to stop the trial arrives before the cache is ready."""


class DatasetCache:
    """The cache `name` in `store`. Its files are read below the folder `root`.

    `should_stop` returns whether this process knows of a request to stop the trial. If it returns
    True on any rank, all ranks stop at their next exchange.
    """

    def __init__(
        self,
        store: CheckpointStore,
        root: Path,
        name: str,
        distributed: DistributedContext,
        log_line: Callable[[str], None],
        should_stop: Callable[[], bool],
    ) -> None:
        """Store the arguments. Read and create nothing yet.

        `log_line` prints a line about the cache. If the processes of `distributed` cannot exchange
        values, each process prepares the same cache alone, and the first to publish wins.
        """
        # Processes that cannot exchange values build separately, and the first to publish wins.
        self._distributed = distributed if distributed.can_exchange else DistributedContext()
        self._store, self._name, self._log_line = store, name, log_line
        self._should_stop = should_stop
        self.folder = root / name
        self._is_in_place = store.root == root
        self._published: set[str] = set()

    def prepare(self, encode_share: EncodeShare) -> Manifest:
        """Return the cache's manifest, with all files in the folder. All ranks call this method.

        Missing files of an intact cache are downloaded to the folder. The processes of the first
        node build a missing or damaged cache, and delete old unpublished attempts. If another node
        cannot see the result, that node's processes build, too. Raises BuildStopped on all ranks
        after a request to stop the trial. Raises DetcloudError for invalid samples, for failures of
        the store or disk, and if another process has exited. Raises errors of `encode_share`.
        """
        group = self._distributed
        manifest = self._prepare_on_node(encode_share) if group.cross_rank == 0 else None
        if group.cross_size > 1:
            if group.broadcast(manifest is not None) and group.cross_rank > 0:
                manifest = self._prepare_on_node(encode_share)
            is_ready = all(group.allgather(manifest is not None))
            manifest = manifest if is_ready else None
        if manifest is None:
            raise BuildStopped
        return manifest

    def _prepare_on_node(self, encode_share: EncodeShare) -> Manifest | None:
        """Return the manifest on all ranks of this node, or None on all after a request to stop.

        The first rank locks and searches the cache. All ranks build a missing or damaged cache.
        Raises DetcloudError for invalid samples, for failures of the store or disk, and if another
        process has exited.
        """
        group = self._distributed
        if group.local_rank > 0:
            found, build = group.broadcast_local((None, ""))
            if build:
                self._gather_shares(build, encode_share)
                found = group.broadcast_local(None)
            return found
        with ExitStack() as stack:
            try:
                stack.enter_context(self._lock())
                found, generation = self._find()
            except BuildStopped:
                return group.broadcast_local((None, ""))[0]
            if found is not None:
                group.broadcast_local((found, ""))
                self._log_line(f"{found.samples:,} samples are read from {self.folder}")
                return found
            build = f"{time.time_ns() // 1_000_000}-{uuid.uuid4().hex[:8]}"
            group.broadcast_local((None, build))
            return group.broadcast_local(self._build(generation, build, encode_share))

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Lock the cache's folder during the block, so that other trials on this machine wait.

        Correctness does not depend on the lock, which other machines may not see. Without support
        for locks, continue with a notice. Raises BuildStopped if a request to stop arrives during
        the wait, and DetcloudError if the folder cannot be created.
        """
        with translate_errors(f"making {self.folder}"):
            self.folder.mkdir(parents=True, exist_ok=True)
            file = (self.folder / ".lock").open("a")
        with file:
            try:
                if not _try_to_lock(file):
                    self._log_line("another trial on this machine prepares it; waiting for that")
                    while not _try_to_lock(file):
                        self._check_stop()
                        time.sleep(LOCK_POLL_SECONDS)
            except OSError:
                # Some mounted file systems have no locks.
                self._log_line(f"{self.folder} cannot be locked: others may build it as well")
            yield

    def _check_stop(self) -> None:
        """Raise BuildStopped if this process knows of a request to stop the trial."""
        if self._should_stop():
            raise BuildStopped

    # Finding, checking and fetching.

    def _find(self) -> tuple[Manifest | None, int]:
        """Return the newest published manifest and the generation, with intact files in the folder.

        Missing and damaged files are downloaded. If no manifest is published or the cache is
        damaged in the store, too, return None and the next generation. Raises BuildStopped after a
        request to stop the trial, and DetcloudError if the store or disk fails.
        """
        generation, text = self._newest_manifest()
        if text is None:
            return None, 1
        try:
            manifest = Manifest.parse(text, self._name, generation)
            with translate_errors(f"reading {self.folder}"):
                self._obtain(manifest)
        except (DamagedManifest, DamagedShard, KeyNotFound) as error:
            self._log_line(f"generation {generation} is damaged and is made again: {error}")
            return None, generation + 1
        return manifest, generation

    def _newest_manifest(self) -> tuple[int, bytes | None]:
        """Return the newest generation in the store and the manifest's text.

        Return 0 and None for an empty store. Remember the builds of all readable manifests as
        published. Raises StorageError.
        """
        generation, newest = 0, None
        with TemporaryDirectory(prefix="detcloud-data-") as folder:
            copy = Path(folder, "manifest")
            while True:
                try:
                    self._store.get(self._manifest_key(generation + 1), copy)
                except KeyNotFound:
                    return generation, newest
                generation, newest = generation + 1, copy.read_bytes()
                with suppress(DamagedManifest):
                    build = Manifest.parse(newest, self._name, generation).build
                    self._published.add(build)

    def _obtain(self, manifest: Manifest) -> None:
        """Ensure that the folder has intact copies of all shards.

        Download missing and damaged shards, unless the folder is the store. If a suspicion file
        marks the build, check every sample and then delete the suspicion file.

        Raises DamagedShard or KeyNotFound if the store has no intact shard, and BuildStopped after
        a request to stop the trial. Raises OSError if a file cannot be read.
        """
        suspicion = suspicion_file(self.folder, manifest)
        is_suspect = suspicion.exists()
        if self._is_in_place:
            for shard in manifest.shards:
                self._check(manifest, shard, whole=is_suspect)
        else:
            bad = [
                item for item in manifest.shards if not self._is_good(manifest, item, is_suspect)
            ]
            self._fetch(manifest, bad)
        suspicion.unlink(missing_ok=True)

    def _check(self, manifest: Manifest, shard: Shard, *, whole: bool) -> None:
        """Check size and index of a shard's file, and with `whole` every sample.

        Raises DamagedShard if the file is missing or differs, and OSError if it cannot be read.
        """
        reader = ShardReader(self.folder / manifest.build, shard)
        try:
            reader.check_samples() if whole else reader.check_file()
        except FileNotFoundError as error:
            raise DamagedShard(str(error)) from error

    def _is_good(self, manifest: Manifest, shard: Shard, whole: bool) -> bool:
        """Return whether a shard's file is present and intact: its size and index.

        With `whole`, also check every sample. Raises OSError if the file cannot be read.
        """
        try:
            self._check(manifest, shard, whole=whole)
        except DamagedShard:
            return False
        return True

    def _fetch(self, manifest: Manifest, shards: list[Shard]) -> None:
        """Download shards to the folder, FETCHED_AT_ONCE at a time, and check every sample.

        Do nothing without shards. Raises BuildStopped after a request to stop the trial,
        DamagedShard for a damaged copy, KeyNotFound for a missing file, and StorageError.
        """
        if not shards:
            return
        size = sum(shard.size_bytes for shard in shards)
        self._log_line(f"{size / 1e6:,.1f} MB are copied to {self.folder}")
        folder = self.folder / manifest.build
        folder.mkdir(parents=True, exist_ok=True)

        def fetch(shard: Shard) -> None:
            self._check_stop()
            part = folder / f".{shard.file}.part"
            self._store.get(self._key(manifest.build, shard.file), part)
            part.replace(folder / shard.file)
            self._check(manifest, shard, whole=True)

        with ThreadPoolExecutor(FETCHED_AT_ONCE) as pool:
            list(pool.map(fetch, shards))

    # Building and publishing.

    def _build(self, generation: int, build: str, encode_share: EncodeShare) -> Manifest | None:
        """Build and publish a cache on all ranks of the node; called on the first rank.

        Return the manifest, or None after a request to stop. An incomplete attempt is deleted.
        Raises DetcloudError for an empty data set, for different lengths on the ranks, and all
        errors of the samples and of the store.
        """
        began = time.monotonic()
        self._log_line(f"it is not there yet and is built in {self.folder}")
        try:
            shares = self._gather_shares(build, encode_share)
        except BaseException:
            self._discard(build)
            raise
        if shares is None:
            self._discard(build)
            return None
        lengths = {length for length, _ in shares}
        shards = tuple(shard for _, share in shares for shard in share)
        if len(lengths) > 1 or not shards:
            self._discard(build)
            raise _source_error(self._name, lengths)
        try:
            manifest = self._publish(Manifest(self._name, generation, build, shards))
        except BuildStopped:
            return None
        seconds = time.monotonic() - began
        text = f"{manifest.samples:,} samples, {manifest.size_bytes / 1e6:,.1f} MB"
        self._log_line(f"built in {seconds:.1f} s: {text}")
        return manifest

    def _gather_shares(
        self, build: str, encode_share: EncodeShare
    ) -> list[tuple[int, list[Shard]]] | None:
        """Write this rank's share, and return the shares of all ranks of the node on the first
        rank.

        Return an empty list on the node's other ranks. After a request to stop the trial, return
        None on the first rank. Raises errors of `encode_share`, and DetcloudError for invalid
        samples, for failures of the store or disk, and if another rank of the node has exited.
        """
        group, share = self._distributed, None
        with suppress(BuildStopped):
            share = self._write_share(build, encode_share)
            self._meet(is_written=True)
        # After this exchange, no rank writes to the build any more.
        shares = group.gather_local(share) or []
        return None if None in shares else [item for item in shares if item is not None]

    def _meet(self, *, is_written: bool) -> None:
        """Wait until every rank of the node has written its share or knows of a request to stop.

        `is_written` is whether this rank has written. Raises BuildStopped on all ranks of the node
        unless all have written their shares, and DetcloudError if another rank has exited.
        """
        if not all(self._distributed.allgather_local(is_written)):
            raise BuildStopped

    def _until_stopped(self, samples: Iterable[Sequence[Buffer]]) -> Iterator[Sequence[Buffer]]:
        """Yield the samples, and raise BuildStopped on all ranks of the node after a request to
        stop.
        """
        for sample in samples:
            yield sample
            if self._should_stop():
                self._meet(is_written=False)

    def _write_share(self, build: str, encode_share: EncodeShare) -> tuple[int, list[Shard]]:
        """Write this rank's samples to shards of the build, and return the length and the shards.

        The length is that of the whole source. Each complete shard is uploaded, unless the folder
        is the store. Raises BuildStopped, and DetcloudError for invalid samples and failures.
        """
        group = self._distributed
        folder = self.folder / build
        with translate_errors(f"making {folder}"):
            folder.mkdir(parents=True, exist_ok=True)

        def finish(shard: Shard) -> None:
            if not self._is_in_place:
                self._store.put(self._key(build, shard.file), folder / shard.file)

        length, samples = encode_share(group.local_rank, group.local_size)
        samples = self._until_stopped(samples)
        return length, write_shards(samples, folder, f"{group.local_rank:04}", finish)

    def _publish(self, manifest: Manifest) -> Manifest:
        """Store the manifest, and return the manifest. The cache is then published.

        Also delete unpublished attempts of other trials that are older than ABANDONED_SECONDS. If
        another trial has published this generation, delete this attempt from store and folder, and
        return the other trial's manifest.

        Raises DetcloudError if the other trial's files are damaged, and StorageError if the store
        fails. Raises BuildStopped after a request to stop the trial.
        """
        with TemporaryDirectory(prefix="detcloud-data-") as folder:
            Path(folder, "manifest").write_bytes(manifest.to_json())
            try:
                key = self._manifest_key(manifest.generation)
                self._store.put(key, Path(folder, "manifest"))
            except KeyExists:
                return self._yield_to_winner(manifest)
        self._published.add(manifest.build)
        self._remove_abandoned()
        return manifest

    def _yield_to_winner(self, manifest: Manifest) -> Manifest:
        """Delete this attempt, and return the manifest that another trial has published.

        Raises DetcloudError if that cache is damaged.
        """
        self._log_line("another trial has built it meanwhile, and its files are used")
        self._discard(manifest.build)
        winner, _ = self._find()
        if winner is None:
            raise DetcloudError(
                f"data set {self._name}: what another trial has built meanwhile is damaged; start "
                "the trial again"
            )
        return winner

    def _discard(self, build: str) -> None:
        """Delete all files of an unpublished attempt from store and folder, ignoring errors."""
        with suppress(DetcloudError, OSError):
            for key in self._store.list(self._key(build)):
                self._store.delete(key)
        shutil.rmtree(self.folder / build, ignore_errors=True)

    def _remove_abandoned(self) -> None:
        """Delete unpublished attempts older than ABANDONED_SECONDS from store and folder.

        No trial continues an attempt of this age. Errors are ignored.
        """
        with suppress(DetcloudError, OSError):
            keys = self._store.list(self._name)
            stored = {key.removeprefix(f"{self._name}/").partition("/")[0] for key in keys}
            local = {path.name for path in self.folder.iterdir() if path.is_dir()}
            for build in (stored | local) - self._published:
                if _is_abandoned(build):
                    self._discard(build)

    def _manifest_key(self, generation: int) -> str:
        """Return the key of a generation's manifest in the store."""
        return f"{self._name}/manifest-{generation:06}.json"

    def _key(self, build: str, *file: str) -> str:
        """Return the key of a build's folder or file in the store."""
        return "/".join((self._name, build, *file))


def _try_to_lock(file: IO[str]) -> bool:
    """Try to lock the file. Return False if another process has the lock.

    Raises OSError without support for locks.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_abandoned(build: str) -> bool:
    """Return whether a build is older than ABANDONED_SECONDS, by the time in the name."""
    milliseconds = build.partition("-")[0]
    return milliseconds.isdigit() and time.time() - int(milliseconds) / 1000 > ABANDONED_SECONDS


def _source_error(name: str, lengths: set[int]) -> DetcloudError:
    """Return the error of a data set whose `lengths` differ between ranks, or without samples.

    `lengths` are the distinct lengths that the ranks found.
    """
    if len(lengths) > 1:
        counts = " and ".join(map(str, sorted(lengths)))
        return DetcloudError(
            f"data set {name}: the function gave {counts} samples on different processes: it must "
            "give the same ones on each"
        )
    return DetcloudError(f"data set {name}: the function gave a data set without samples")
