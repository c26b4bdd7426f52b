"""The fetching of an allocation's layers before the launch.

No failure of a transfer fails the trial: without an archive, the packages are installed.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import stat
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from detcloud.agent.layer_archives.records import KEY, LayerRefused
from detcloud.agent.package_cache import DECLARED, HOOK
from detcloud.shared.errors import DetcloudError
from detcloud.shared.files import delete_tree

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from detcloud.agent.allocation.directory import AllocationDirectory
    from detcloud.agent.layer_archives.cluster import ClusterArchives, StoredArchive

CHECK_SECONDS = 0.5
NAMES = {DECLARED: "declared packages", HOOK: "startup-hook.sh"}
# The names of layer folders that launch/packages/layers.py generates.
_LAYER = re.compile(r"build-[A-Za-z0-9_-]{1,100}")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# The lock makes concurrent launches fetch an archive only once.
_fetching = threading.Lock()


class TransferStop(Exception):
    """The trial was asked to stop during a transfer."""


@dataclass(frozen=True, slots=True)
class UsedLayer:
    """A layer that the trial uses."""

    kind: str
    """DECLARED or HOOK."""
    cache: Path
    """The folder with the layer."""
    key: str
    """The layer's key. "" if only the container can compute the key."""


class TrialLayers:
    """The layers of an allocation. `used` lists the layers that `obtain` was called for.

    Args:
        archives: the cluster's archives.
        directory: the allocation's directory.
        transfers: a private folder of the agent, on the file system of the caches.
        experiment: a unique name of the experiment.
        is_wanted: returns whether the trial may still start.
        log_line: writes to the agent's log.
        check_seconds: the least time between two calls of `is_wanted` during a transfer.
    """

    def __init__(
        self,
        archives: ClusterArchives,
        directory: AllocationDirectory,
        transfers: Path,
        experiment: str,
        is_wanted: Callable[[], bool],
        log_line: Callable[[str], None],
        check_seconds: float = CHECK_SECONDS,
    ) -> None:
        self._archives = archives
        self.directory = directory
        self.transfers = transfers
        self.experiment = experiment
        self._is_wanted = is_wanted
        self._log_line = log_line
        self._check_seconds = check_seconds
        self._checked_at = 0.0
        self._stored: list[StoredArchive] | None = None
        self.used: list[UsedLayer] = []

    def obtain(self, kind: str, cache: Path, key: str) -> None:
        """Fetch a layer of this kind into the folder `cache`, unless the cache has the layer.

        With an empty key, fetch all missing layers of this kind that the experiment has. Add the
        layer to `used`. Wait while another launch fetches layers. Report failures in the agent's
        log and the trial's log, and do not raise them.
        """
        self.used.append(UsedLayer(kind, cache, key))
        if key and os.path.lexists(cache / key):
            return
        began = time.monotonic()
        try:
            fetched = self._fetch_missing(kind, cache, key)
        except TransferStop:
            self.tell(kind, "are not fetched, because the trial was asked to stop")
        except (LayerRefused, DetcloudError, OSError, ValueError, KeyError, TypeError) as error:
            self.tell(kind, f"could not be fetched and are installed: {error}")
        else:
            if fetched:
                self.tell(kind, f"fetched in {time.monotonic() - began:.1f} s", journal=False)

    def tell(self, kind: str, what: str, *, journal: bool = True) -> None:
        """Write a line about a kind of packages into the trial's log.

        With `journal`, also write the line to the agent's log. `what` completes a sentence that
        starts with "packages". An OSError of the trial's log is logged, not raised.
        """
        text = f"{NAMES[kind]}: packages {what}"
        if journal:
            self._log_line(f"{self.directory.allocation}: {text}")
        try:
            self.directory.write_notices([f"[detcloud] {text}"])
        except OSError as error:
            self._log_line(f"the log of {self.directory.allocation} cannot be written: {error}")

    def _fetch_missing(self, kind: str, cache: Path, key: str) -> bool:
        """Fetch missing layers of a kind, and return whether any layer was fetched.

        An empty key means all layers. Wait while another launch fetches layers. Raise TransferStop
        if the trial was asked to stop.
        """
        while not _fetching.acquire(timeout=self._check_seconds):
            self.check_wanted(now=True)
        try:
            self.check_wanted(now=True)
            if self._stored is None:
                self._stored = self._archives.list_archives(self.directory.allocation) or []
            found = False
            for archive in self._stored:
                is_missing = not os.path.lexists(cache / archive.key)
                if archive.kind == kind and key in ("", archive.key) and is_missing:
                    self._fetch_layer(archive, cache)
                    found = True
            return found
        finally:
            _fetching.release()

    def check_wanted(self, *, now: bool = False) -> None:
        """Raise TransferStop if the trial was asked to stop.

        Within `check_seconds` of the last check, do nothing unless `now` is True.
        """
        if now or time.monotonic() - self._checked_at >= self._check_seconds:
            self._checked_at = time.monotonic()
            if not self._is_wanted():
                raise TransferStop

    def _fetch_layer(self, archive: StoredArchive, cache: Path) -> None:
        # Imported here to keep idle agents small.
        from detcloud.agent.layer_archives.unpack import unpack_layer

        self.transfers.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = f"build-{os.urandom(8).hex()}"
        packed, unpacked = self.transfers / f"{name}.part", self.transfers / name
        try:
            with _CheckedFile(packed, archive.size, self) as file:
                self._archives.download(archive, file)
                file.seek(0)
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            if digest != archive.sha256:
                raise LayerRefused(f"the archive has the digest {digest}, not {archive.sha256}")
            owner = self.directory.owner
            unpack_layer(packed, unpacked, owner, self.check_wanted)
            place_layer(unpacked, cache, archive.key, owner)
        finally:
            packed.unlink(missing_ok=True)
            if unpacked.is_dir():
                delete_tree(unpacked)


def place_layer(folder: Path, cache: Path, key: str, owner: tuple[int, int] | None = None) -> None:
    """Move a complete layer into a cache, and create the link `key` to the layer.

    Create the cache if needed. If the key exists already, the folder stays at its old place. Trials
    may change the cache at the same time.

    Args:
        folder: the layer.
        cache: the folder to move the layer into.
        key: the layer's key.
        owner: the user and group of the link. None for the agent's user.

    Raises:
        OSError: the cache is a link or cannot be written.
    """
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    around = os.open(cache, _FOLDER)
    try:
        os.rename(folder, folder.name, dst_dir_fd=around)
        try:
            os.symlink(folder.name, key, dir_fd=around)
        except FileExistsError:
            # A trial has installed the same layer meanwhile. The caller deletes this copy.
            os.rename(folder.name, folder, src_dir_fd=around)
            return
        if owner is not None:
            os.chown(key, *owner, dir_fd=around, follow_symlinks=False)
    finally:
        os.close(around)


def find_used_layer(used: UsedLayer, overlay: Path) -> tuple[str, str] | None:
    """Return the key and the folder name of a used layer.

    If the key is unknown, search the cache for the layer that the overlay's `packages` link names.
    Return None if the cache has no such layer or cannot be read. Trials may have written the links,
    so only targets in the form of a layer's folder name are accepted.
    """
    try:
        around = os.open(used.cache, _FOLDER)
    except OSError:
        return None
    try:
        keys = [used.key]
        wanted = None
        if not used.key:
            wanted = (overlay / "packages").readlink().name
            keys = [name for name in os.listdir(around) if KEY.fullmatch(name)]  # noqa: PTH208
        for key in keys:
            layer = _link_target(key, around)
            if layer is not None and wanted in (None, layer):
                return key, layer
    except OSError:
        return None
    finally:
        os.close(around)
    return None


def _link_target(key: str, around: int) -> str | None:
    status = os.stat(key, dir_fd=around, follow_symlinks=False)
    if not stat.S_ISLNK(status.st_mode):
        return None
    target = os.readlink(key, dir_fd=around)
    return target if _LAYER.fullmatch(target) else None


class _CheckedFile(io.FileIO):
    """A new file of at most `size` bytes for a download.

    Writing raises TransferStop after a stop of the trial, and LayerRefused above the size.
    """

    def __init__(self, path: Path, size: int, layers: TrialLayers) -> None:
        super().__init__(path, "x+b")
        self._size = size
        self._layers = layers

    def write(self, block: Any, /) -> int:
        self._layers.check_wanted()
        if self.tell() + len(block) > self._size:
            raise LayerRefused(f"the archive has more than {self._size} bytes")
        return super().write(block)
