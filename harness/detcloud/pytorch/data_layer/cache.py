"""One cached data set in its folder: found, checked, fetched, built and published.

    ID/VERSION_SPLIT/manifest-GENERATION.json   published, if absent, once all it names is there
    ID/VERSION_SPLIT/BUILD/RANK-NUMBER.bin      the shards of one attempt at building it

Of several that build at once the first manifest wins, and the others take what it names; files that
no manifest names are believed by nobody. Nothing that is published is changed: what is found
damaged is followed by another generation. A cache in a bucket has the same files in the local
folder, where they are read.
"""

from __future__ import annotations

import fcntl
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from detcloud.core import DistributedContext
from detcloud.pytorch.data_layer.dataset import suspicion_file
from detcloud.pytorch.data_layer.manifest import DamagedManifest, Manifest
from detcloud.pytorch.data_layer.shard import DamagedShard, Shard, ShardReader, write_shards
from detcloud.shared.errors import DetcloudError
from detcloud.storage import CheckpointStore, KeyExists, KeyNotFound
from detcloud.storage.store import translate_errors

FETCHED_AT_ONCE = 4
# A build that is so old and was not published has been killed.
ABANDONED_SECONDS = 24 * 3600

EncodeShare = Callable[[int, int], tuple[int, Iterable[bytes]]]
"""Gives the length of the source, and the samples of one rank of so many as bytes."""


class DatasetCache:
    """The cache named `name` in `store`, whose files are read below the folder `root`."""

    def __init__(
        self,
        store: CheckpointStore,
        root: Path,
        name: str,
        distributed: DistributedContext,
        log_line: Callable[[str], None],
    ) -> None:
        # Processes that cannot exchange anything build each for itself: one wins.
        self._distributed = distributed if distributed.can_exchange else DistributedContext()
        self._store, self._name, self._log_line = store, name, log_line
        self.folder = root / name
        self._is_in_place = store.root == root
        self._published: set[str] = set()

    def prepare(self, encode_share: EncodeShare) -> Manifest:
        """The manifest of the cache, whose files are in the folder on return; all ranks call it.

        What is not there yet is built, by all processes of the first node, and where that cannot be
        seen by those of each.
        """
        group = self._distributed
        if group.cross_size > 1 and group.cross_rank > 0:
            group.broadcast(None)
            return self._prepare_on_node(encode_share)
        manifest = self._prepare_on_node(encode_share)
        if group.cross_size > 1:
            group.broadcast(None)
        return manifest

    def _prepare_on_node(self, encode_share: EncodeShare) -> Manifest:
        group = self._distributed
        if group.local_rank == 0:
            with self._lock():
                found, generation = self._find()
                build = f"{time.time_ns() // 1_000_000}-{uuid.uuid4().hex[:8]}"
                group.broadcast_local((found, build))
                if found is None:
                    return group.broadcast_local(self._build(generation, build, encode_share))
                self._log_line(f"{found.samples:,} samples are read from {self.folder}")
                return found
        found, build = group.broadcast_local((None, ""))
        if found is None:
            group.gather_local(self._write_share(build, encode_share))
            found = group.broadcast_local(None)
        assert found is not None
        return found

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Keep this machine's other trials from doing the same work meanwhile.

        Nothing depends on it, for other machines may have no part in it.
        """
        with translate_errors(f"making {self.folder}"):
            self.folder.mkdir(parents=True, exist_ok=True)
            file = (self.folder / ".lock").open("a")
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._log_line("another trial on this machine prepares it; waiting for that")
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError:
                # Some mounted file systems have no locks.
                self._log_line(f"{self.folder} cannot be locked: others may build it as well")
            yield

    # Finding, checking and fetching.

    def _find(self) -> tuple[Manifest | None, int]:
        """The newest cache if it is good, and the generation to build otherwise."""
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
        """Have good copies of all files in the folder. Raises DamagedShard and KeyNotFound where
        there are none to be had.
        """
        suspicion = suspicion_file(self.folder, manifest)
        is_suspect = suspicion.exists()
        if self._is_in_place:
            for shard in manifest.shards:
                self._check(manifest, shard, whole=is_suspect)
        else:
            bad = [it for it in manifest.shards if not self._is_good(manifest, it, is_suspect)]
            self._fetch(manifest, bad)
        suspicion.unlink(missing_ok=True)

    def _check(self, manifest: Manifest, shard: Shard, *, whole: bool) -> None:
        reader = ShardReader(self.folder / manifest.build, shard)
        try:
            reader.check_samples() if whole else reader.check_file()
        except FileNotFoundError as error:
            raise DamagedShard(str(error)) from error

    def _is_good(self, manifest: Manifest, shard: Shard, whole: bool) -> bool:
        try:
            self._check(manifest, shard, whole=whole)
        except DamagedShard:
            return False
        return True

    def _fetch(self, manifest: Manifest, shards: list[Shard]) -> None:
        if not shards:
            return
        size = sum(shard.size_bytes for shard in shards)
        self._log_line(f"{size / 1e6:,.1f} MB are copied to {self.folder}")
        folder = self.folder / manifest.build
        folder.mkdir(parents=True, exist_ok=True)

        def fetch(shard: Shard) -> None:
            part = folder / f".{shard.file}.part"
            self._store.get(self._key(manifest.build, shard.file), part)
            part.replace(folder / shard.file)
            self._check(manifest, shard, whole=True)

        with ThreadPoolExecutor(FETCHED_AT_ONCE) as pool:
            list(pool.map(fetch, shards))

    # Building and publishing.

    def _build(self, generation: int, build: str, encode_share: EncodeShare) -> Manifest:
        began = time.monotonic()
        self._log_line(f"it is not there yet and is built in {self.folder}")
        try:
            shares = self._distributed.gather_local(self._write_share(build, encode_share)) or []
        except BaseException:
            self._discard(build)
            raise
        lengths = {length for length, _ in shares}
        shards = tuple(shard for _, share in shares for shard in share)
        if len(lengths) > 1 or not shards:
            self._discard(build)
            raise _source_error(self._name, lengths)
        manifest = self._publish(Manifest(self._name, generation, build, shards))
        seconds = time.monotonic() - began
        text = f"{manifest.samples:,} samples, {manifest.size_bytes / 1e6:,.1f} MB"
        self._log_line(f"built in {seconds:.1f} s: {text}")
        return manifest

    def _write_share(self, build: str, encode_share: EncodeShare) -> tuple[int, list[Shard]]:
        group = self._distributed
        folder = self.folder / build
        with translate_errors(f"making {folder}"):
            folder.mkdir(parents=True, exist_ok=True)

        def finish(shard: Shard) -> None:
            if not self._is_in_place:
                self._store.put(self._key(build, shard.file), folder / shard.file)

        length, samples = encode_share(group.local_rank, group.local_size)
        return length, write_shards(samples, folder, f"{group.local_rank:04}", finish)

    def _publish(self, manifest: Manifest) -> Manifest:
        """Publish the manifest; return it, or the one that was there first."""
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
        """Remove an attempt that nobody believes; what cannot be removed is left."""
        with suppress(DetcloudError, OSError):
            for key in self._store.list(self._key(build)):
                self._store.delete(key)
        shutil.rmtree(self.folder / build, ignore_errors=True)

    def _remove_abandoned(self) -> None:
        """Remove attempts that were killed long ago."""
        with suppress(DetcloudError, OSError):
            keys = self._store.list(self._name)
            stored = {key.removeprefix(f"{self._name}/").partition("/")[0] for key in keys}
            local = {path.name for path in self.folder.iterdir() if path.is_dir()}
            for build in (stored | local) - self._published:
                if _is_abandoned(build):
                    self._discard(build)

    def _manifest_key(self, generation: int) -> str:
        return f"{self._name}/manifest-{generation:06}.json"

    def _key(self, build: str, *file: str) -> str:
        return "/".join((self._name, build, *file))


def _is_abandoned(build: str) -> bool:
    milliseconds = build.partition("-")[0]
    return milliseconds.isdigit() and time.time() - int(milliseconds) / 1000 > ABANDONED_SECONDS


def _source_error(name: str, lengths: set[int]) -> DetcloudError:
    if len(lengths) > 1:
        counts = " and ".join(map(str, sorted(lengths)))
        return DetcloudError(
            f"data set {name}: the function gave {counts} samples on different processes: it must "
            "give the same ones on each"
        )
    return DetcloudError(f"data set {name}: the function gave a data set without samples")
